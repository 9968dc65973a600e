// The tokenizer behind a pipe, so that a script can compare it with another one.
//   tokenizer_pipe FOLDER
// Requests on stdin, answers on stdout; counts are little-endian uint32, ids int32:
//   'E' (with special tokens) or 'e' (without), size, text     → count, ids
//   'D' (special tokens kept) or 'd' (left out), count, ids    → size, text
//   'S' (kept) or 's': like 'D' and 'd', token by token through the Detokenizer
#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace {

bool read_exactly(void* out, size_t size) {
  return std::fread(out, 1, size, stdin) == size;
}

template <typename Items>
void answer(const Items& items) {
  const auto count = static_cast<uint32_t>(items.size());
  std::fwrite(&count, sizeof(count), 1, stdout);
  std::fwrite(items.data(), sizeof(items[0]), items.size(), stdout);
  std::fflush(stdout);
}

std::string stream(const vamp::Tokenizer& tokenizer, const std::vector<vamp::TokenId>& ids,
                   bool skip_special) {
  vamp::Detokenizer detokenizer(tokenizer, {.skip_special_tokens = skip_special});
  std::string text;
  for (const vamp::TokenId id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

void serve(const vamp::Tokenizer& tokenizer) {
  char kind = 0;
  uint32_t count = 0;
  while (read_exactly(&kind, 1) && read_exactly(&count, sizeof(count))) {
    if (kind == 'E' || kind == 'e') {
      std::string text(count, '\0');
      if (!read_exactly(text.data(), text.size())) return;
      answer(tokenizer.encode(text, kind == 'E'));
      continue;
    }
    std::vector<vamp::TokenId> ids(count);
    if (!read_exactly(ids.data(), ids.size() * sizeof(ids[0]))) return;
    const bool skip = kind == 'd' || kind == 's';
    answer(kind == 'S' || kind == 's' ? stream(tokenizer, ids, skip) : tokenizer.decode(ids, skip));
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The tokenizer behind a pipe");
  std::string folder;
  app.add_option("folder", folder, "Model folder with tokenizer.json")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    serve(vamp::Tokenizer::load(folder));
  } catch (const vamp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
