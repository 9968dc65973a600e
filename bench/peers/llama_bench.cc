// Speed of llama.cpp on the CPU: prefill of one prompt, decode at batch 1 and 8. Its library is
// called as its own llama-bench calls it, without building all that llama-bench links.
//
//   llama_bench MODEL.gguf [THREADS PREFILL CONTEXT STEPS REPEAT]
//
// Each figure is the best of REPEAT runs. The last line is {"prefill":…,"decode1":…,"decode8":…} in
// tokens a second.
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

struct Bench {
  llama_context* context;
  int vocab;
  std::mt19937 random{1};

  llama_token token() { return static_cast<llama_token>(random() % vocab); }

  // Tokens [first, first + count) of each of `sequences`; logits of the last ones. Returns seconds.
  double decode(int sequences, int first, int count) {
    llama_batch batch = llama_batch_init(sequences * count, 0, 1);
    for (int s = 0; s < sequences; ++s) {
      for (int i = 0; i < count; ++i) {
        const int at = batch.n_tokens++;
        batch.token[at] = token();
        batch.pos[at] = first + i;
        batch.n_seq_id[at] = 1;
        batch.seq_id[at][0] = s;
        batch.logits[at] = i == count - 1;
      }
    }
    const auto start = std::chrono::steady_clock::now();
    if (llama_decode(context, batch) != 0) {
      std::fprintf(stderr, "llama_decode failed\n");
      std::exit(1);
    }
    llama_synchronize(context);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    llama_batch_free(batch);
    return time.count();
  }

  void clear() { llama_memory_clear(llama_get_memory(context), true); }

  double prefill_rate(int tokens) {
    clear();
    return tokens / decode(1, 0, tokens);
  }

  double decode_rate(int sequences, int before, int steps) {
    clear();
    decode(sequences, 0, before);
    double seconds = 0;
    for (int i = 0; i < steps; ++i) seconds += decode(sequences, before + i, 1);
    return sequences * steps / seconds;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: llama_bench MODEL.gguf [THREADS PREFILL CONTEXT STEPS REPEAT]\n");
    return 2;
  }
  const auto number = [&](int i, int fallback) { return argc > i ? std::atoi(argv[i]) : fallback; };
  const int threads = number(2, 1), prefill = number(3, 1024), before = number(4, 16);
  const int steps = number(5, 16), repeat = number(6, 3);

  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) {
    std::fprintf(stderr, "cannot load %s\n", argv[1]);
    return 1;
  }
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(8 * std::max(prefill, before + steps));
  params.n_batch = 2048;  // llama-bench's
  params.n_ubatch = 512;
  params.n_seq_max = 8;
  params.n_threads = params.n_threads_batch = threads;
  Bench bench{llama_init_from_model(model, params),
              llama_vocab_n_tokens(llama_model_get_vocab(model))};
  if (!bench.context) return 1;

  bench.prefill_rate(128);
  double best[3] = {};
  for (int i = 0; i < repeat; ++i) {
    best[0] = std::max(best[0], bench.prefill_rate(prefill));
    best[1] = std::max(best[1], bench.decode_rate(1, before, steps));
    best[2] = std::max(best[2], bench.decode_rate(8, before, steps));
  }
  std::printf("{\"prefill\":%.2f,\"decode1\":%.2f,\"decode8\":%.2f}\n", best[0], best[1], best[2]);
  return 0;
}
