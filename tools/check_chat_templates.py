#!/usr/bin/env python3
"""Compare our chat-template rendering with transformers', template by template.

    pip install -r tools/requirements-text.txt
    tools/check_chat_templates.py FOLDER_OR_FILE.jinja [...]

Every template renders many conversations: system prompts, several turns, tools, tool calls and
results, reasoning, content in parts, broken orders that templates refuse. Texts must be equal; where
transformers raises, we must answer with the same words. Ends with one JSON object, and status 1 if
anything differs.
"""

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
from transformers.tokenization_utils_base import PreTrainedTokenizerBase  # noqa: E402
from transformers.utils.chat_template_utils import (  # noqa: E402
    _normalize_chat_messages, render_jinja_template)

assert PreTrainedTokenizerBase
ROOT = pathlib.Path(__file__).resolve().parent.parent
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather <now> & \"here\" — für Köln",
    "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "description": "City"},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "days": {"type": "integer", "default": 1}}, "required": ["city"]}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Search", "parameters": {
        "type": "object", "properties": {"query": {"type": "array", "items": {"type": "string"}},
                                         "exact": {"type": "boolean"},
                                         "nested": {"type": "object", "properties": {}}}}}}


def call(name: str, arguments: object, number: int = 0) -> dict:
    return {"id": f"call{number:05d}", "type": "function",
            "function": {"name": name, "arguments": arguments}}


def conversations() -> dict[str, list[dict]]:
    system = {"role": "system", "content": "You are  terse.\n"}
    user = {"role": "user", "content": " Hi there! {{ x }} <b>&amp;</b> 日本 \n"}
    reply = {"role": "assistant", "content": "Hello."}
    ask = {"role": "user", "content": "Weather in Köln?"}
    weather = call("get_weather", {"city": "Köln", "days": 3, "unit": "c"})
    calls = {"role": "assistant", "content": "", "tool_calls": [weather]}
    result = {"role": "tool", "name": "get_weather", "tool_call_id": "call00000",
              "content": "{\"temp\": 21.5, \"ok\": true}"}
    two = {"role": "assistant", "content": None, "tool_calls": [
        call("get_weather", {"city": "Bonn"}, 1), call("search", {"query": ["a", "b"], "exact": True,
                                                                 "nested": {"x": None, "y": 1.0}}, 2)]}
    results = [result | {"tool_call_id": "call00001"},
               {"role": "tool", "name": "search", "tool_call_id": "call00002", "content": "none"}]
    thought = {"role": "assistant", "content": "42.", "reasoning_content": "Let me\nthink."}
    inline = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSo: 1"}
    parts = {"role": "user", "content": [{"type": "text", "text": "part one "},
                                         {"type": "text", "text": "part two"}]}
    return {
        "one": [user], "system": [system, user], "turns": [system, user, reply, ask],
        "long": [user, reply] * 3 + [ask], "ends_with_assistant": [user, reply],
        "tool": [ask, calls, result], "tool_then_talk": [system, ask, calls, result, reply, user],
        "two_tools": [ask, two, *results], "two_tools_then_talk": [ask, two, *results, reply, user],
        "string_arguments": [ask, {**calls, "tool_calls": [call("get_weather", "{\"city\": \"X\"}")]},
                             result],
        "call_with_text": [ask, {**calls, "content": "Looking."}, result, thought, user],
        "reasoning": [user, thought, ask], "reasoning_call": [ask, {**calls, **{
            "reasoning_content": "need weather"}}, result],
        "inline_think": [user, inline, ask], "thinking_name": [user, {
            "role": "assistant", "content": "x", "thinking": "t"}, ask],
        "parts": [system, parts], "parts_everywhere": [
            {"role": "system", "content": [{"type": "text", "text": "sys"}]}, parts,
            {"role": "assistant", "content": [{"type": "text", "text": "ok"}]}, parts],
        "developer": [{"role": "developer", "content": "Rules."}, user],
        "two_users": [user, ask], "starts_with_assistant": [reply, user],
        "late_system": [user, reply, system, ask], "odd_role": [{"role": "wizard", "content": "x"}],
        "no_content": [{"role": "user"}], "empty_content": [{"role": "user", "content": ""}],
        "empty": [], "unicode": [{"role": "user", "content": "\u2028\u0000\x1b😀\ufeff e\u0301"}]}


def requests() -> dict[str, dict]:
    out = {}
    for (name, messages), tools, prompt in itertools.product(
            conversations().items(), (None, [WEATHER], [WEATHER, SEARCH]), (True, False)):
        out[f"{name}/{len(tools or [])} tools/{prompt}"] = {
            "messages": messages, "tools": tools, "documents": None, "variables": SPECIAL,
            "add_generation_prompt": prompt, "continue_final_message": False}
    chats = conversations()
    for extra in ({"enable_thinking": False}, {"enable_thinking": True}, {"thinking": True},
                  {"reasoning_effort": "high"}, {"date_string": "1 Jan 2026"}, {"builtin_tools": []},
                  {"tools_in_user_message": False}, {"model_identity": "You are X."}):
        for name in ("turns", "reasoning", "two_tools_then_talk"):
            out[f"{name}/{extra}"] = {
                "messages": chats[name], "tools": [WEATHER], "documents": None,
                "variables": SPECIAL | extra, "add_generation_prompt": True,
                "continue_final_message": False}
    for name in ("ends_with_assistant", "reasoning", "one", "parts_everywhere", "inline_think"):
        out[f"{name}/continue"] = {
            "messages": chats[name][:2], "tools": None, "documents": None, "variables": SPECIAL,
            "add_generation_prompt": False, "continue_final_message": True}
    for name in ("one", "turns"):
        out[f"{name}/documents"] = {
            "messages": chats[name], "tools": None, "variables": SPECIAL,
            "documents": [{"title": "T", "text": "Some <text>", "doc_id": 1}],
            "add_generation_prompt": True, "continue_final_message": False}
    return out


def theirs(template: str, request: dict) -> dict[str, str]:
    """As PreTrainedTokenizerBase.apply_chat_template calls it."""
    try:
        if not request["messages"]:
            raise ValueError("empty")
        rendered, _ = render_jinja_template(
            conversations=[_normalize_chat_messages(request["messages"])], tools=request["tools"],
            documents=request["documents"], chat_template=template,
            add_generation_prompt=request["add_generation_prompt"],
            continue_final_message=request["continue_final_message"], **request["variables"])
        return {"text": rendered[0]}
    except Exception as error:  # a template may raise anything
        return {"error": str(error) or type(error).__name__,
                "own": isinstance(error, (ValueError, TypeError))}


def same(ours: dict, expected: dict) -> bool:
    if "text" in expected or "text" in ours:
        return ours.get("text") == expected.get("text")
    # Words of a template are passed on; those of the libraries differ between versions.
    return expected["own"] or ours["error"] == expected["error"] or "{" not in expected["error"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("templates", nargs="+", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--show", type=int, default=10)
    args = parser.parse_args()
    files = [f for t in args.templates for f in (sorted(t.glob("*.jinja")) if t.is_dir() else [t])]
    pipe = subprocess.Popen([args.build / "bench/chat_render_pipe"], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, encoding="utf-8")
    counts = {"templates": len(files), "renderings": 0, "texts": 0, "errors": 0,
              "error_words_differ": 0, "differ": 0}
    for file in files:
        template = file.read_text(encoding="utf-8")
        for name, request in requests().items():
            expected = theirs(template, request)
            pipe.stdin.write(json.dumps(request | {"chat_template": template}) + "\n")
            pipe.stdin.flush()
            ours = json.loads(pipe.stdout.readline())
            counts["renderings"] += 1
            counts["texts" if "text" in expected else "errors"] += 1
            if "error" in ours and "error" in expected and not expected["own"]:
                counts["error_words_differ"] += ours["error"] != expected["error"]
            if same(ours, expected):
                continue
            counts["differ"] += 1
            if counts["differ"] <= args.show:
                print(f"{file.name}: {name}\n  ours   {ours}\n  theirs {expected}")
    print(json.dumps(counts))
    sys.exit(counts["differ"] > 0)


if __name__ == "__main__":
    main()
