# docker build -f docker/cpu.Dockerfile -t rft-data:cpu --build-arg PIP_EXTRA_INDEX_URL=<index of torch's CPU builds> .
FROM python:3.11.14-slim-bookworm

# vLLM on CPUs loads libnuma and compiles with g++. Debian's release pins them.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 \
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
ARG PIP_EXTRA_INDEX_URL
RUN bash docker/install.sh cpu /opt/rft && useradd --create-home --uid 10001 rft

USER 10001
WORKDIR /home/rft
ENV PATH=/opt/rft/bin:$PATH
ENTRYPOINT ["rft"]
CMD ["doctor"]
