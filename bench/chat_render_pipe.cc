// Chat templates behind a pipe, for tools/check_chat_templates.py: one request a line on stdin (the
// members of ChatPrompt as JSON), one answer a line: {"text": …} or {"error": …}.
#include <iostream>

#include "text/chat_renderer.h"

int main() {
  vamp::ChatRenderer renderer;
  for (std::string line; std::getline(std::cin, line);) {
    vamp::ChatJson request = vamp::ChatJson::parse(line);
    vamp::ChatPrompt prompt;
    prompt.chat_template = request.at("chat_template");
    prompt.messages = request.at("messages");
    prompt.tools = request.at("tools");
    prompt.documents = request.at("documents");
    prompt.variables = request.at("variables");
    prompt.add_generation_prompt = request.at("add_generation_prompt");
    prompt.continue_final_message = request.at("continue_final_message");
    vamp::ChatJson answer;
    try {
      answer["text"] = renderer.render(prompt);
    } catch (const vamp::Error& error) {
      answer["error"] = error.what();
    }
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}
