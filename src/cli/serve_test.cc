// `vamp serve` up to the server itself: flags, config files, where models lie, and the docs made of
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "cli/config_file.h"
#include "cli/model_path.h"
#include "cli/serve_flags.h"
#include "cli/test_support.h"
#include "server/metrics.h"
#include "server/service.h"

namespace vamp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class ServeTest : public testing::Test {
 protected:
  ServeTest() { fs::create_directories(folder_); }
  ~ServeTest() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("vamp_serve_test_" + std::to_string(getpid()));
};

std::pair<int, std::string> run(const std::vector<std::string>& args) {
  const CommandResult result = run_command(args);
  return {result.code, result.err};
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(ServeTest, ConfigFilesGiveFlagsAndTheCommandLineGoesBefore) {
  const std::string path = write("c.yaml",
                                 "model: some/model\nport: 9000\nmax_model_len: 4096\n"
                                 "enable-auto-tool-choice: true\nenable-prefix-caching: false\n"
                                 "served-model-name: [a, b]\nenforce-eager: false\n");
  EXPECT_THAT(expand_config({"serve", "--config", path, "--port=1"}),
              ElementsAre("serve", "some/model", "--max-model-len", "4096",
                          "--enable-auto-tool-choice=true", "--enable-prefix-caching=false",
                          "--served-model-name", "a", "--served-model-name", "b",
                          "--enforce-eager=false", "--port=1"));
  EXPECT_EQ(expand_config({"serve", "mine", "--config=" + path})[1], "mine");
  EXPECT_THAT(expand_config({"replay", "--config", path}), ElementsAre("replay", "--config", path));
}

TEST_F(ServeTest, FaultyConfigFilesAreNamed) {
  const auto fault = [](const std::string& path) {
    return error_of([&] { expand_config({"serve", "--config", path, "--host", "::1"}); });
  };
  EXPECT_THAT(fault("/none.yaml"), HasSubstr("/none.yaml"));
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"port: [1\n", "not valid YAML"},
      {"- port\n", "expected flags"},
      {"port:\n  a: 1\n", "port is neither a value"},
      {"seed: 1\nport:\n", "port has no value"},
      {"port: ~\n", "port has no value"},
      {"api-key: [a, ]\nport: [1, ~]\n", "port is neither a value"},
      {"config: other.yaml\n", "config: a file of flags names no other"},
      {"port: 1\n? [a, b]\n: 1\n", ":2: the key is not a flag's name"},
      {"--port: 1\n", ":1: the key is not a flag's name"},
      {"port=1: 1\n", ":1: the key is not a flag's name"},
  };
  for (const auto& [text, message] : faults) {
    const std::string path = write("c.yaml", text);
    EXPECT_THAT(fault(path), AllOf(StartsWith(path), HasSubstr(message))) << text;
  }
}

// What stands behind it must not be taken for its value.
TEST_F(ServeTest, ASwitchInAConfigFileIsNoValue) {
  const std::string path = write("c.yaml", "port: true\nenforce-eager: yes\nhost: \"on\"\n");
  EXPECT_THAT(expand_config({"serve", "m", "--config", path}),
              ElementsAre("serve", "m", "--port=true", "--enforce-eager=true", "--host", "on"));
}

TEST_F(ServeTest, HubIdsAreFoundInTheCacheOrTheCommandIsTold) {
  const fs::path snapshot = folder_ / "models--org--name" / "snapshots" / "abc";
  EXPECT_THAT(error_of([&] { find_model("org/name", folder_); }),
              HasSubstr("huggingface-cli download org/name"));
  write("models--org--name/refs/main", "abc\n");
  write("models--org--name/snapshots/abc/config.json", "{}");
  EXPECT_EQ(find_model("org/name", folder_), snapshot);
  EXPECT_EQ(find_model(folder_.string(), folder_), folder_);
  EXPECT_THAT(error_of([&] { find_model("/no/such/folder", folder_); }),
              HasSubstr("no such folder"));
}

TEST_F(ServeTest, KeysComeFromFlagEnvironmentAndFile) {
  ServeFlags flags;
  flags.engine.machine.model = "m";
  flags.api_keys = {"one"};
  flags.api_key_file = write("keys", "# comment\ntwo\n\nthree # mine\n");
  EXPECT_THAT(error_of([&] { finish_server_flags(flags, ""); }), HasSubstr("chmod 600"));
  fs::permissions(flags.api_key_file, fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_THAT(finish_server_flags(flags, "env").api_keys,
              ElementsAre("one", "env", "two", "three"));
  EXPECT_THAT(finish_server_flags(flags, "").served_names, ElementsAre("m"));
  EXPECT_THAT(error_of([&] { finish_server_flags(flags, " "); }), HasSubstr("VAMP_API_KEY"));
  for (const char* key : {"", "  ", "a ", "\ta"}) {
    flags.api_keys = {"one", key};
    EXPECT_THAT(error_of([&] { finish_server_flags(flags, ""); }), HasSubstr("--api-key: the key"));
  }
}

TEST_F(ServeTest, FaultsAreOneLineAndCodeTwo) {
  const std::string kv_events = R"({"enable_kv_cache_events": true})";
  const std::vector<std::pair<std::vector<std::string>, std::string>> faults = {
      {{"serve"}, "model"},
      {{"serve", "/nonexistent"}, "no such folder"},
      {{"serve", "org/none"}, "huggingface-cli download org/none"},
      {{"serve", "x", "--port", "99999"}, "--port"},
      {{"serve", "x", "--tool-call-parser", "nope"}, "use one of"},
      {{"serve", "x", "--enable-auto-tool-choice"}, "--tool-call-parser"},
      {{"serve", "x", "--policy", "nope"}, "nope"},
      {{"serve", "x", "--chat-template", "/no/file"}, "no such file"},
      {{"serve", "x", "--chat-template", "{{ 1 }}\n{% for %}"},
       "--chat-template (the text given): line 2"},
      {{"serve", "x", "--chat-template", write("t", "Hello")}, "holds no Jinja text"},
      {{"serve", ""}, "model: the value is empty"},
      {{"serve", "x", "--served-model-name", ""}, "--served-model-name: the value is empty"},
      {{"serve", "x", "--api-key", "--port", "1"}, "--api-key: '--port' is a flag"},
      {{"serve", "x", "--dtype", "int8"}, "--dtype int8: use one of"},
      {{"serve", "x", "--gpu-memory-utilization", "0.9"}, "--gpu-memory-utilization says nothing"},
      {{"serve", "x", "-tp", "2"}, "--tensor-parallel-size says nothing to --executor cpu"},
      {{"serve", "x", "-tp", "1", "--policy", "nope"}, "unknown policy"},  // one is what there is
      {{"serve", "x", "--sim-step-ms", "1"}, "--sim-step-ms says nothing to --executor cpu"},
      {{"serve", "x", "--executor", "sim", "--load-format", "dummy"}, "--load-format says nothing"},
      {{"serve", "x", "--generation-config", "/no/folder"}, "--generation-config /no/folder"},
      {{"serve", "x", "--kv-events-config", "{"}, "--kv-events-config: not valid JSON"},
      {{"serve", "x", "--kv-events-config", kv_events, "--no-enable-prefix-caching"},
       "leave it or --no-enable-prefix-caching out"},
  };
  for (const auto& [args, message] : faults) {
    const auto [code, error] = run(args);
    EXPECT_EQ(code, 2) << message;
    EXPECT_THAT(error, AllOf(StartsWith("vamp: error: "), HasSubstr(message)));
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
  }
}

TEST_F(ServeTest, NumbersHaveLimits) {
  const auto refused = [](const std::string& flag, const std::string& value) {
    const auto [code, error] = run({"serve", "x", flag + "=" + value});
    EXPECT_EQ(code, 2) << flag << " " << value;
    EXPECT_THAT(error, HasSubstr(flag)) << value;
  };
  for (const char* flag : {"--max-logprobs",
                           "--seed",
                           "--port",
                           "--api-server-threads",
                           "--text-threads",
                           "--max-connections",
                           "--max-waiting-requests",
                           "--max-json-depth",
                           "--max-choices",
                           "--header-timeout",
                           "--body-timeout",
                           "--write-timeout",
                           "--idle-timeout",
                           "--keep-alive-interval",
                           "--drain-timeout",
                           "--engine-stall-timeout",
                           "--max-grammar-repetition",
                           "--max-schema-depth",
                           "--max-schema-values",
                           "--sim-step-ms"}) {
    for (const char* value : {"-1", "nan", "inf", "1e400", "99999999999999999999", "many"})
      refused(flag, value);
  }
  for (const char* flag : {"--max-connections", "--max-choices", "--header-timeout",
                           "--idle-timeout", "--max-schema-values"}) {
    refused(flag, "0");
  }
  for (const char* flag : {"--max-body-bytes", "--max-header-bytes", "--max-stream-backlog-bytes",
                           "--max-grammar-bytes", "--grammar-cache-bytes"}) {
    for (const char* value : {"0", "-1", "nan", "lots"}) refused(flag, value);
  }
}

TEST_F(ServeTest, GenerationConfigsHaveLimits) {
  const std::string path = write("generation_config.json",
                                 R"({"temperature": 0.5, "top_k": -1, "max_new_tokens": null})");
  const SamplingDefaults defaults = load_sampling_defaults(folder_);
  EXPECT_EQ(defaults.temperature, 0.5f);
  EXPECT_EQ(defaults.top_k, 0);
  EXPECT_EQ(defaults.max_tokens, 0);
  for (const char* field :
       {"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens"}) {
    for (const char* value : {"-2", "1e300", "\"1\"", "[]"}) {
      write("generation_config.json", fmt::format("{{\"{}\": {}}}", field, value));
      EXPECT_THAT(error_of([&] { load_sampling_defaults(folder_); }),
                  AllOf(StartsWith(path), HasSubstr(field)));
    }
  }
}

// What follows the marker in the page is what the program says of itself.
void expect_page_ends_with(const std::string& page, const std::string& table) {
  const std::string text = read_text_file(std::string(VAMP_SOURCE_DIR) + "/docs/" + page);
  const size_t marker = text.find("<!-- ");
  ASSERT_NE(marker, std::string::npos);
  EXPECT_EQ(text.substr(text.find('\n', marker) + 1), table)
      << "docs/" << page << " is behind the program: the marker says which command makes its table";
}

TEST(ServeDocs, FlagsAreThoseOfTheProgram) {
  expect_page_ends_with("serving.md", serve_flags_table());
}

TEST(ServeDocs, MetricsAreThoseOfTheProgram) {
  expect_page_ends_with("metrics.md", Metrics::table());
}

}  // namespace
}  // namespace vamp
