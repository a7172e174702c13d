"""Chat templates written after the public behaviour of model families, and two that break the rules.

They are short: each has what decides how a conversation of many turns is rendered.
"""

from __future__ import annotations

_CALLS = (
    "{%- for call in m.tool_calls or [] %}{{ '\n<tool_call>\n' }}"
    "{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}{{ '\n</tool_call>' }}"
    "{%- endfor %}"
)
_ANSWERS = (
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{%- endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{%- endif %}"
)
_TOOLS = (
    "{%- if tools %}{{ '\n\n# Tools\n<tools>' }}{%- for t in tools %}{{ '\n' + (t | tojson) }}{%- endfor %}"
    "{{ '\n</tools>' }}{%- endif %}"
)

QWEN25 = (
    "{{ '<|im_start|>system\n' }}"
    "{%- if messages[0].role == 'system' %}{{ messages[0].content }}"
    "{%- else %}{{ 'You are Qwen, a helpful assistant.' }}{%- endif %}" + _TOOLS + "{{ '<|im_end|>\n' }}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}" + _ANSWERS + ""
    "{%- elif m.role == 'assistant' %}"
    "{{ '<|im_start|>assistant' }}{%- if m.content or not m.tool_calls %}{{ '\n' + m.content }}{%- endif %}"
    "" + _CALLS + "{{ '<|im_end|>\n' }}"
    "{%- elif not (m.role == 'system' and loop.first) %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)

_QWEN3_TURN = (
    "{%- set content = m.content %}{%- set thought = m.reasoning_content or '' %}"
    "{%- if not thought and '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
)
QWEN3 = (
    "{%- set ns = namespace(query=-1) %}"
    "{%- for m in messages %}{%- if m.role == 'user' and not m.content.startswith('<tool_response>') %}"
    "{%- set ns.query = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- if tools or messages[0].role == 'system' %}{{ '<|im_start|>system\n' }}"
    "{%- if messages[0].role == 'system' %}{{ messages[0].content }}{%- endif %}" + _TOOLS + ""
    "{{ '<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}" + _ANSWERS + ""
    "{%- elif m.role == 'assistant' %}" + _QWEN3_TURN + "{{ '<|im_start|>assistant\n' }}"
    "{%- if loop.index0 > ns.query and (loop.last or thought) %}"
    "{{ '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}"
    "{%- else %}{{ content }}{%- endif %}" + _CALLS + "{{ '<|im_end|>\n' }}"
    "{%- elif not (m.role == 'system' and loop.first) %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
    "{%- endif %}{%- endif %}"
)

LLAMA3 = (
    "{{ '<|begin_of_text|>' }}"
    "{%- for m in messages %}"
    "{%- if m.tool_calls %}"
    "{%- if m.tool_calls | length != 1 %}{{ raise_exception('one tool call at a time') }}{%- endif %}"
    "{%- set call = m.tool_calls[0].function %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    "{{ '{\"name\": \"' + call.name + '\", \"parameters\": ' + (call.arguments | tojson) + '}<|eot_id|>' }}"
    "{%- else %}{%- set role = 'ipython' if m.role == 'tool' else m.role %}"
    "{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}"
    "{%- if tools and m.role == 'user' and loop.index0 <= 1 %}"
    "{{ 'Answer with JSON.\n' + (tools | tojson) + '\n' }}{%- endif %}"
    "{{ m.content | trim + '<|eot_id|>' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)

GEMMA = (
    "{{ '<bos>' }}{%- set ns = namespace(system='') %}"
    "{%- if messages[0].role == 'system' %}{%- set ns.system = messages[0].content + '\n\n' %}{%- endif %}"
    "{%- set said = messages[1:] if ns.system else messages %}"
    "{%- for m in said %}"
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif %}"
    "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}"
    "{%- if loop.first %}{{ ns.system }}{%- endif %}{{ m.content | trim + '<end_of_turn>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{%- endif %}"
)

COUNTING = (
    "{{ '<|im_start|>system\nThis conversation has ' ~ (messages | length) ~ ' messages.<|im_end|>\n' }}"
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
"""Adversarial: the beginning depends on all that follows."""

EMPTY_THINKING = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' %}"
    "{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{%- endif %}"
    "{{ m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
"""Adversarial: a turn without thinking gets an empty block of it when it becomes history."""

SPECIAL = (
    "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>",
    "<|start_header_id|>", "<|end_header_id|>", "<bos>", "<start_of_turn>", "<end_of_turn>",
)  # fmt: skip
FAMILIES = {
    "qwen2.5": QWEN25,
    "qwen3": QWEN3,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "counting": COUNTING,
    "empty_thinking": EMPTY_THINKING,
}
