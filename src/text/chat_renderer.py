"""Renders chat templates, one request after another, as Hugging Face's apply_chat_template does.

This is the child process of ChatRenderer (chat_renderer.h): templates come with models from
anywhere, so they run here, in Jinja2's sandbox and under limits, and not in the server. A frame is
four bytes of length, little endian, and JSON. The first one out says {"ready": true}; each request
is answered by {"text": …} or {"error": …}. One without messages asks whether the template compiles.
"""

import datetime
import functools
import json
import math
import resource
import sys
import time

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "


class Fault(Exception):
    """What the caller has done wrong, in words for the user."""


class GenerationBlock(jinja2.ext.Extension):
    """{% generation %}…{% endgeneration %} marks the assistant's words for training: plain text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    """namespace() without attributes that could reach into Python."""

    def __init__(*args, **kwargs):
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            check_attribute(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name, value):
        check_attribute(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


class Dict:
    """dict() without the type."""

    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


def check_attribute(name):
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace can't hold {name!r}")


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


@functools.lru_cache(maxsize=16)
def compiled(template):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[GenerationBlock, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals.update(
        raise_exception=raise_exception, dict=Dict(), namespace=Namespace,
        strftime_now=lambda form: datetime.datetime.now().strftime(form))
    return environment.from_string(template)


def normalized(message):
    """Without what is None; the reasoning under every name that templates read."""
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[key] for key in REASONING_FIELDS if key in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def mark_final(messages, template):
    """Marks the end of the last message's text, and returns that text."""
    content = messages[-1].get("content")
    if content is None or "content" not in template:
        raise Fault("continue_final_message: the final message has no content to continue")
    if not isinstance(content, list):
        messages[-1]["content"] = content + CONTINUE_MARK
        return content
    for part in reversed(content):
        if "text" in part:
            text = part["text"]
            part["text"] = text + CONTINUE_MARK
            return text
    raise Fault("continue_final_message: the final message has no text to continue")


def cut_at_mark(text, final):
    mark = CONTINUE_MARK.strip()
    if final.strip() not in text or mark not in text:
        raise Fault("continue_final_message: the chat template left out the final message")
    at = text.rindex(mark)
    if text[at:at + len(CONTINUE_MARK)] == CONTINUE_MARK:
        return text[:at]
    return text[:at].rstrip()  # the template has stripped the message, so the mark's space too


def render(request):
    messages = request["messages"]
    if not messages:
        raise Fault("a chat template needs at least one message")
    if not all(isinstance(message, dict) for message in messages):
        raise Fault("each message of a chat is an object")
    messages = [normalized(message) for message in messages]
    template = request["template"]
    final = mark_final(messages, template) if request["continue_final_message"] else None
    variables = {**request["variables"], "messages": messages, "tools": request["tools"],
                 "documents": request["documents"],
                 "add_generation_prompt": request["add_generation_prompt"]}
    parts, size = [], 0
    for part in compiled(template).generate(variables):
        parts.append(part)
        size += len(part)
        if size > request["output_limit"]:
            raise Fault(f"the chat template writes more than {request['output_limit']} characters")
    text = "".join(parts)
    return text if final is None else cut_at_mark(text, final)


def answer(request):
    cpu = math.ceil(time.process_time()) + request["cpu_seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, resource.RLIM_INFINITY))
    try:
        if "messages" not in request:  # only a check
            compiled(request["template"])
            return {"text": ""}
        return {"text": render(request)}
    except MemoryError:
        return {"error": "the chat template needs more memory than it may have"}
    except jinja2.TemplateSyntaxError as error:
        return {"error": f"line {error.lineno} of the chat template: {error.message}"}
    except Exception as error:  # whatever a template can make Python raise
        return {"error": str(error) or type(error).__name__}


def send(value):
    data = json.dumps(value).encode("ascii")
    sys.stdout.buffer.write(len(data).to_bytes(4, "little") + data)
    sys.stdout.buffer.flush()


def main():
    memory = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
        resource.setrlimit(limit, (0, 0))
    send({"ready": True})
    while len(header := sys.stdin.buffer.read(4)) == 4:
        data = sys.stdin.buffer.read(int.from_bytes(header, "little"))
        try:
            request = json.loads(data)
        except (ValueError, RecursionError) as error:
            send({"error": f"the chat can't be read: {error}"})
            continue
        send(answer(request))


main()
