# docker build -f docker/cuda.Dockerfile -t rft-data:cuda .
# The development image, because vLLM and Triton compile kernels when they are first used.
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04

# Ubuntu's release pins them: Python 3.12.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY docker/install.sh docker/install.sh
COPY requirements requirements
COPY docs docs
COPY rft_data rft_data
COPY ops ops
COPY recipes recipes
COPY explorers explorers
COPY trainers trainers
RUN bash docker/install.sh cuda /opt/rft && useradd --create-home --uid 10001 rft

USER 10001
WORKDIR /home/rft
ENV PATH=/opt/rft/bin:$PATH
ENTRYPOINT ["rft"]
CMD ["doctor"]
