// `vamp inspect MODEL`: the plan of the memory, as a table or as JSON.
#include <memory>
#include <ostream>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/memory_plan.h"

namespace vamp {
namespace {

struct InspectOptions {
  std::string model;
  std::string gpu;
  std::string device_memory;
  std::string reserve;
  std::string page = "2MiB";
  double utilization = 0;  // 0: the preset's
  bool json = false;
  MemoryPlanOptions plan;
};

void apply_budget(InspectOptions& options) {
  MemoryPlanOptions& plan = options.plan;
  if (!options.gpu.empty()) {
    const GpuPreset& gpu = gpu_preset(options.gpu);
    const double utilization =
        options.utilization > 0 ? options.utilization : gpu.memory_utilization;
    plan.device_bytes = static_cast<size_t>(static_cast<double>(gpu.memory_bytes) * utilization);
    plan.reserve_bytes = gpu.reserve_bytes;
  } else if (options.utilization > 0) {
    throw Error("--gpu-memory-utilization is a share of a GPU's memory: give --gpu with it");
  }
  if (!options.device_memory.empty()) {
    plan.device_bytes = memory_flag("--device-memory", options.device_memory);
  }
  if (!options.reserve.empty()) plan.reserve_bytes = memory_flag("--reserve", options.reserve);
}

void run_inspect(InspectOptions options, CommandContext& context) {
  const ModelConfig model = load_model_config(options.model);
  options.plan.page_bytes = memory_flag("--page-size", options.page);
  apply_budget(options);
  const MemoryPlan plan = make_memory_plan(model, options.plan);
  if (options.json) {
    nlohmann::ordered_json json;
    json["model"] = options.model;
    json["architecture"] = model.model_type;
    json["dtype"] = dtype_name(model.dtype);
    if (!options.gpu.empty()) json["gpu"] = options.gpu;
    json.update(plan_json(plan));
    context.out << json.dump(2) << "\n";
    return;
  }
  context.out << fmt::format("{}: {}, {}, {} layers, top {} of {} experts\n", options.model,
                             model.model_type, dtype_name(model.dtype), model.num_layers(),
                             model.experts_per_token, model.num_experts);
  context.out << fmt::format("each of {} GPU{}{}:\n", plan.options.tensor_parallel,
                             plan.options.tensor_parallel > 1 ? "s" : "",
                             options.gpu.empty() ? "" : " (" + options.gpu + ")");
  context.out << plan_table(plan);
}

std::string preset_names() {
  std::string names;
  for (const GpuPreset& preset : gpu_presets()) names += (names.empty() ? "" : ", ") + preset.name;
  return names;
}

}  // namespace

void add_inspect_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<InspectOptions>();
  options->plan.ratios = {5, 10, 15, 20, 25, 30};
  CLI::App* command = app.add_subcommand(
      "inspect", "Show how a model's memory would be laid out; needs only its config.json");
  command->add_option("model", options->model, "Hugging Face folder, or a config.json")->required();
  CLI::Option* gpu = command->add_option("--gpu", options->gpu, "GPU: " + preset_names());
  command
      ->add_option("--tensor-parallel-size", options->plan.tensor_parallel,
                   "GPUs that the model is cut over; short form -tp (default 1)")
      ->check(number_from(1, 1024));
  command
      ->add_option("--gpu-memory-utilization", options->utilization,
                   "share of the GPU's memory to use (default: the preset's, mostly 0.92)")
      ->check(number_from(0.01, 1));
  command
      ->add_option("--device-memory", options->device_memory,
                   "budget for everything, like 2GiB, instead of a GPU's")
      ->excludes(gpu);
  command->add_option("--reserve", options->reserve,
                      "part of the budget for runtime memory (default: the preset's, else none)");
  command->add_option("--page-size", options->page, "page of the memory mapping (default 2MiB)");
  command->add_option("--block-size", options->plan.block_tokens, "tokens a KV block (default 16)")
      ->check(number_from(1, 1 << 16));
  command
      ->add_option("--max-offload-ratio", options->plan.ratios,
                   "VAMP-r: percent of a layer's experts that may be given up; may be given again")
      ->check(number_from(0, 100))
      ->delimiter(',')
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &context] { run_inspect(*options, context); });
}

}  // namespace vamp
