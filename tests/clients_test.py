#!/usr/bin/env python3
"""The OpenAI and Anthropic Python clients against `vamp serve` on the CPU executor.

    clients_test.py build/release/vamp

The model is a tiny random checkpoint of tests/golden with a tokenizer of tests/golden: its words mean
nothing, its answers are real. Skipped where the clients are not installed (scripts/python-env.sh clients).
"""

import json
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-clients"
SKIPPED = 77  # ctest's SKIP_RETURN_CODE
KEY = "secret-key"
TEMPLATE = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")


def reenter_in_venv() -> None:
    python = VENV / "bin" / "python"
    if not (VENV / "stamp").exists():  # written last
        print("SKIPPED: the clients are not installed: run scripts/python-env.sh clients")
        sys.exit(SKIPPED)
    if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
        os.execv(python, [str(python), *sys.argv])


def make_model(folder: pathlib.Path) -> None:
    golden = ROOT / "tests/golden/mixtral"
    shutil.copy(golden / "model.safetensors", folder)
    config = json.loads((golden / "config.json").read_text())
    config["eos_token_id"] = 506  # </s> of the tokenizer
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(ROOT / "tests/golden/tokenizers/metaspace/tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}))


class Server:
    """`vamp serve` as a child; the port is a free one."""

    def __init__(self, vamp: str, model: pathlib.Path, *flags: str, port: int = 0) -> None:
        self.process = subprocess.Popen(
            [vamp, "serve", str(model), "--port", str(port), "--served-model-name", "tiny", "--device-memory",
             "64MiB", "--threads", "1", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "VAMP_API_KEY": KEY})
        line = self.process.stdout.readline()
        self.log: list[str] = []
        threading.Thread(target=self._read_log, daemon=True).start()
        if not line:
            self.process.wait()
            time.sleep(0.2)
            sys.exit("vamp serve did not start:\n" + "".join(self.log))
        self.url = f"http://127.0.0.1:{int(line.split()[-1])}"

    def _read_log(self) -> None:
        for line in self.process.stderr:
            self.log.append(line)

    def wait_ready(self, context: ssl.SSLContext | None = None) -> None:
        for _ in range(600):
            try:
                with urllib.request.urlopen(self.url + "/health", context=context):
                    return
            except urllib.error.HTTPError:  # 503: still loading
                time.sleep(0.1)
            if self.process.poll() is not None:
                break
        sys.exit("vamp serve did not become ready:\n" + "".join(self.log))


def check_openai(url: str) -> None:
    import openai
    client = openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)
    assert [m.id for m in client.models.list()] == ["tiny"]

    ask = dict(model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=12,
               temperature=0, extra_body={"ignore_eos": True})
    whole = client.chat.completions.create(**ask)
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 12
    text, usage = "", None
    for chunk in client.chat.completions.create(**ask, stream=True,
                                                stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
    assert text == whole.choices[0].message.content, (text, whole.choices[0].message.content)
    assert usage.completion_tokens == 12

    again = client.chat.completions.create(**ask, n=2, logprobs=True, top_logprobs=2)
    assert [c.message.content for c in again.choices] == [text, text], "greedy answers differ"
    for token in again.choices[0].logprobs.content:
        assert token.logprob <= 0

    completion = client.completions.create(model="tiny", prompt="one two", max_tokens=5,
                                           temperature=0, logprobs=1)
    assert completion.choices[0].finish_reason in ("length", "stop")
    check_prompt_logprobs(client)

    seeded = [client.completions.create(model="tiny", prompt="x", max_tokens=8, seed=7,
                                        temperature=1.5).choices[0].text for _ in range(2)]
    assert seeded[0] == seeded[1], "one seed, two texts"

    check_constrained_output(client, ask["messages"])

    response = client.responses.create(model="tiny", input="hello", max_output_tokens=6)
    assert response.status in ("completed", "incomplete")
    kinds = [event.type for event in client.responses.create(model="tiny", input="hello",
                                                             max_output_tokens=6, stream=True)]
    assert kinds[0] == "response.created", kinds
    assert kinds[-1] in ("response.completed", "response.incomplete"), kinds

    for error, call in [
        (openai.NotFoundError, dict(ask, model="other")),
        (openai.BadRequestError, dict(ask, max_tokens=10**6)),
        (openai.BadRequestError, dict(ask, temperature=-1)),
    ]:
        try:
            client.chat.completions.create(**call)
        except error as fault:
            assert fault.body["message"], fault.body
        else:
            raise AssertionError(f"no {error.__name__}")
    try:
        openai.OpenAI(base_url=url + "/v1", api_key="wrong", max_retries=0).models.list()
    except openai.AuthenticationError:
        pass
    else:
        raise AssertionError("a wrong key was taken")


def check_prompt_logprobs(client) -> None:
    """As lm-evaluation-harness scores texts. A token sampled greedily is as likely in the next prompt."""
    ask = dict(model="tiny", temperature=0, logprobs=2)
    sampled = client.completions.create(**ask, prompt=[7, 30, 41], max_tokens=1,
                                        extra_body={"return_token_ids": True}).choices[0]
    longer = [7, 30, 41] + sampled.token_ids
    for _ in range(2):  # cached or not
        echoed = client.completions.create(**ask, prompt=longer, max_tokens=1, echo=True,
                                           extra_body={"prompt_logprobs": 2}).choices[0]
        lists = echoed.logprobs
        assert len(lists.tokens) == 5 and lists.token_logprobs[0] is None, lists
        assert lists.token_logprobs[3] == sampled.logprobs.token_logprobs[0], lists
        entry = echoed.prompt_logprobs[3][str(longer[3])]
        assert entry["rank"] == 1 and entry["logprob"] == lists.token_logprobs[3], entry


def check_constrained_output(client, messages: list) -> None:
    """Random weights must answer by the schema too. It is small: nothing else would make them end."""
    import openai
    schema = {"type": "object", "additionalProperties": False, "required": ["color", "count"],
              "properties": {"color": {"type": "string", "enum": ["red", "green"]},
                             "count": {"type": "integer", "minimum": 1, "maximum": 9}}}

    def expect(text: str) -> None:
        value = json.loads(text)
        assert set(value) == {"color", "count"}, value
        assert value["color"] in ("red", "green") and 1 <= value["count"] <= 9, value

    for temperature in (0, 1):
        ask = dict(model="tiny", messages=messages, max_tokens=400, temperature=temperature, seed=5)
        strict = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}
        answer = client.chat.completions.create(**ask, response_format=strict).choices[0]
        assert answer.finish_reason == "stop", answer
        expect(answer.message.content)

        tools = [{"type": "function", "function": {"name": name, "parameters": schema}}
                 for name in ("paint", "count")]
        calls = client.chat.completions.create(**ask, tools=tools, tool_choice="required",
                                               parallel_tool_calls=False).choices[0]
        assert calls.finish_reason == "tool_calls", calls
        assert len(calls.message.tool_calls) == 1, calls
        assert calls.message.tool_calls[0].function.name in ("paint", "count"), calls
        expect(calls.message.tool_calls[0].function.arguments)

        name, arguments = "", ""
        for chunk in client.chat.completions.create(
                **ask, tools=tools, stream=True,
                tool_choice={"type": "function", "function": {"name": "count"}}):
            for call in chunk.choices[0].delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
        assert name == "count", name
        expect(arguments)

    choice = client.completions.create(model="tiny", prompt="x", max_tokens=20, extra_body={
        "structured_outputs": {"choice": ["yes", "no"]}}).choices[0]
    assert choice.text in ("yes", "no"), choice
    try:  # the tokenizer has no token for it
        client.completions.create(model="tiny", prompt="x", extra_body={"guided_regex": "\u00b2"})
    except openai.BadRequestError as fault:
        assert fault.body["param"] == "guided_regex", fault.body
    else:
        raise AssertionError("an output that no token can begin was promised")
    response = client.responses.create(
        model="tiny", input="hello", max_output_tokens=400,
        text={"format": {"type": "json_schema", "name": "s", "strict": True, "schema": schema}})
    expect(response.output_text)


def check_anthropic(url: str) -> None:
    import anthropic
    client = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)
    ask = dict(model="tiny", max_tokens=8, system="be brief",
               messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}])
    message = client.messages.create(**ask, extra_body={"temperature": 0})
    assert message.role == "assistant" and message.usage.output_tokens > 0
    with client.messages.stream(**ask, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
    assert text == "".join(block.text for block in message.content)
    counted = client.messages.count_tokens(model="tiny", messages=ask["messages"], system="be brief")
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    tool = {"name": "pick", "input_schema": {"type": "object", "required": ["side"], "properties": {
        "side": {"type": "string", "enum": ["left", "right"]}}}}
    called = client.messages.create(**dict(ask, max_tokens=400), tools=[tool], tool_choice={
        "type": "tool", "name": "pick"})
    assert called.stop_reason == "tool_use", called
    assert called.content[0].name == "pick" and called.content[0].input["side"] in ("left", "right"), called
    try:
        client.messages.create(**dict(ask, model="other"))
    except anthropic.NotFoundError:
        pass
    else:
        raise AssertionError("a model that is not served was taken")


def check_tls(vamp: str, model: pathlib.Path) -> None:
    """Chat over TLS, on two io threads, with a certificate made here."""
    if not shutil.which("openssl"):
        print("TLS is not tried: there is no openssl program")
        return
    cert, key = model / "cert.pem", model / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out",
                    str(cert)], check=True, capture_output=True)
    server = Server(vamp, model, "--ssl-certfile", str(cert), "--ssl-keyfile", str(key),
                    "--api-server-threads", "2")
    try:
        server.url = server.url.replace("http:", "https:")
        context = ssl.create_default_context(cafile=str(cert))
        server.wait_ready(context)
        body = {"prompt": "hello", "max_tokens": 20, "ignore_eos": True, "stream": True}
        ask = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(),
                                     {"Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(ask, context=context) as reply:
            lines = [line for line in reply.read().decode().splitlines() if line]
        assert lines[-1] == "data: [DONE]" and len(lines) > 2, lines
    finally:
        server.process.kill()


def check_shutdown(server: Server) -> None:
    server.process.terminate()
    assert server.process.wait(timeout=30) == 0, "".join(server.log)


def main() -> None:
    reenter_in_venv()
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder)
        make_model(model)
        server = Server(sys.argv[1], model)
        try:
            server.wait_ready()
            check_openai(server.url)
            check_anthropic(server.url)
            check_shutdown(server)
            check_tls(sys.argv[1], model)
        finally:
            server.process.kill()
    print("the OpenAI and Anthropic clients chat, stream, and get the errors they expect")


if __name__ == "__main__":
    main()
