// `vamp serve` up to the server itself: flags, config files, where models lie, and the docs made of
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/config_file.h"
#include "cli/model_path.h"
#include "cli/serve_flags.h"
#include "server/metrics.h"

namespace vamp {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

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
                          "--enable-auto-tool-choice", "--no-enable-prefix-caching",
                          "--served-model-name", "a", "--served-model-name", "b", "--port=1"));
  EXPECT_EQ(expand_config({"serve", "mine", "--config=" + path})[1], "mine");
  EXPECT_THAT(expand_config({"replay", "--config", path}), ElementsAre("replay", "--config", path));
}

TEST_F(ServeTest, FaultyConfigFilesAreNamed) {
  EXPECT_THAT(error_of([] {
                expand_config({"serve", "--config", "/none.yaml"});
              }),
              HasSubstr("/none.yaml"));
  const std::string broken = write("b.yaml", "port: [1\n");
  EXPECT_THAT(error_of([&] {
                expand_config({"serve", "--config", broken});
              }),
              HasSubstr("not valid YAML"));
  const std::string list = write("l.yaml", "- port\n");
  EXPECT_THAT(error_of([&] {
                expand_config({"serve", "--config", list});
              }),
              HasSubstr("expected flags"));
  const std::string nested = write("n.yaml", "port:\n  a: 1\n");
  EXPECT_THAT(error_of([&] { expand_config({"serve", "--config", nested}); }), HasSubstr("port"));
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
  const std::vector<std::pair<std::vector<std::string>, std::string>> faults = {
      {{"serve"}, "model"},
      {{"serve", "/nonexistent"}, "no such folder"},
      {{"serve", "org/none"}, "huggingface-cli download org/none"},
      {{"serve", "x", "--port", "99999"}, "--port"},
      {{"serve", "x", "--tool-call-parser", "nope"}, "use one of"},
      {{"serve", "x", "--enable-auto-tool-choice"}, "--tool-call-parser"},
      {{"serve", "x", "--policy", "nope"}, "nope"},
      {{"serve", "x", "--chat-template", "/no/file"}, "no such file"},
      {{"serve", "x", "--max-body-bytes", "lots"}, "lots"},
      {{"serve", "x", "--generation-config", "/no/folder"}, "--generation-config /no/folder"},
  };
  for (const auto& [args, message] : faults) {
    std::vector<const char*> argv = {"vamp"};
    for (const std::string& arg : args) argv.push_back(arg.c_str());
    std::ostringstream out, err;
    EXPECT_EQ(run_cli(static_cast<int>(argv.size()), argv.data(), out, err), 2) << message;
    EXPECT_THAT(err.str(), HasSubstr(message));
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
