// How fast the tokenizer encodes and decodes a text file on one thread.
//   tokenizer_bench FOLDER TEXT [--repeat N]
// Prints {"load_s", "encode_mb_s", "encode_mtoken_s", "decode_mb_s", …}; the best of N rounds.
// tools/check_tokenizer.py --bench puts Hugging Face's figures beside it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "text/tokenizer.h"

namespace {

template <typename Work>
double best_seconds(int rounds, Work work) {
  const vamp::RealClock clock;
  double best = 1e30;
  for (int round = 0; round < rounds; ++round) {
    const vamp::Micros begin = clock.now();
    work();
    best = std::min(best, (clock.now() - begin) / vamp::kSecond);
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Encoding and decoding speed of a tokenizer, one thread");
  std::string folder, file;
  int rounds = 3;
  app.add_option("folder", folder, "Model folder with tokenizer.json")->required();
  app.add_option("text", file, "UTF-8 text to encode")->required();
  app.add_option("--repeat", rounds, "Rounds; the best counts");
  CLI11_PARSE(app, argc, argv);
  try {
    const vamp::RealClock clock;
    const vamp::Tokenizer tokenizer = vamp::Tokenizer::load(folder);
    const double load = clock.now() / vamp::kSecond;
    const std::string text = vamp::read_text_file(file, vamp::kGiB);
    std::vector<vamp::TokenId> ids;
    std::string decoded;
    const double encode = best_seconds(rounds, [&] { ids = tokenizer.encode(text, false); });
    const double decode = best_seconds(rounds, [&] { decoded = tokenizer.decode(ids, false); });
    const double megabytes = static_cast<double>(text.size()) / 1e6;
    const nlohmann::json result = {
        {"bytes", text.size()},
        {"tokens", ids.size()},
        {"load_s", load},
        {"encode_mb_s", megabytes / encode},
        {"encode_mtoken_s", static_cast<double>(ids.size()) / 1e6 / encode},
        {"decode_mb_s", megabytes / decode},
        {"round_trip", decoded == text},
    };
    std::printf("%s\n", result.dump().c_str());
  } catch (const vamp::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
  return 0;
}
