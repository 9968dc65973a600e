#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/test_files.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string file_of(const std::string& header, const std::string& data) {
  std::string text(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(text.data(), &length, 8);
  return text + header + data;
}

std::string file_of(const json& header, const std::string& data) {
  return file_of(header.dump(), data);
}

json tensor(const char* dtype, std::vector<uint64_t> shape, uint64_t begin, uint64_t end) {
  return {{"dtype", dtype}, {"shape", std::move(shape)}, {"data_offsets", {begin, end}}};
}

std::vector<SafetensorsEntry> parse(const std::string& text) {
  return parse_safetensors_header({reinterpret_cast<const std::byte*>(text.data()), text.size()},
                                  text.size(), "f.safetensors");
}

std::string header_error(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("f.safetensors"));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "no error";
}

TEST(SafetensorsHeader, ReadsTensorsAndSkipsMetadata) {
  const json header = {{"__metadata__", {{"format", "pt"}}},
                       {"b", tensor("BF16", {2, 3}, 4, 16)},
                       {"a", tensor("F32", {}, 0, 4)},
                       {"none", tensor("F16", {0, 7}, 16, 16)}};
  const std::string padded = header.dump() + "   ";  // writers pad the header with blanks
  const auto entries = parse(file_of(padded, std::string(16, 'x')));
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].begin, 8 + padded.size());
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_EQ(entries[1].shape, (std::vector<size_t>{2, 3}));
  EXPECT_EQ(entries[1].end - entries[1].begin, 12u);
}

TEST(SafetensorsHeader, RefusesDamagedFiles) {
  const std::string data(16, 'x');
  const json good = {{"a", tensor("F32", {4}, 0, 16)}};
  EXPECT_EQ(header_error(file_of(good, data)), "no error");
  EXPECT_THAT(header_error(""), HasSubstr("too few"));
  EXPECT_THAT(header_error("1234567"), HasSubstr("too few"));
  EXPECT_THAT(header_error(std::string(8, '\xff')), HasSubstr("limit of 100000000"));
  EXPECT_THAT(header_error(std::string("\x40\0\0\0\0\0\0\0{}", 10)), HasSubstr("cut short"));
  EXPECT_THAT(header_error(file_of(std::string("{\"a\":"), data)), HasSubstr("not valid JSON"));
  EXPECT_THAT(header_error(file_of(std::string("[1]"), data)), HasSubstr("expected a JSON object"));
  EXPECT_THAT(header_error(file_of(good, "too short")), HasSubstr("cut short"));
  EXPECT_THAT(header_error(file_of(good, data + "more")), HasSubstr("damaged"));
  EXPECT_THAT(header_error(file_of(std::string(2000, '['), data)), HasSubstr("deeper than 64"));
}

TEST(SafetensorsHeader, RefusesHostileTensors) {
  const std::string data(16, 'x');
  const auto of = [&](const json& tensors) { return header_error(file_of(tensors, data)); };
  EXPECT_THAT(of({{"a", tensor("F32", {4}, 0, 16)}, {"b", tensor("F32", {2}, 8, 16)}}),
              HasSubstr("tensor 'b' overlaps"));
  EXPECT_THAT(of({{"a", tensor("F32", {1}, 0, 4)}, {"b", tensor("F32", {2}, 8, 16)}}),
              HasSubstr("tensor 'b' does not begin"));
  EXPECT_THAT(of({{"a", tensor("F32", {3}, 0, 16)}}), HasSubstr("dtype and shape make 12"));
  EXPECT_THAT(of({{"a", tensor("F32", {1ull << 63, 4}, 0, 16)}}), HasSubstr("overflows"));
  EXPECT_THAT(of({{"a", tensor("F32", {1ull << 62}, 0, 16)}}), HasSubstr("overflows"));
  EXPECT_THAT(of({{"a", tensor("F32", {4}, 16, 0)}}), HasSubstr("begin <= end"));
  EXPECT_THAT(of({{"a", tensor("F32", {4}, 0, UINT64_MAX)}}), HasSubstr("cut short"));
  EXPECT_THAT(of({{"a", tensor("Q4", {4}, 0, 16)}}), HasSubstr("'Q4'"));
  EXPECT_THAT(of({{"a", tensor("F4", {3}, 0, 1)}}), HasSubstr("whole bytes"));
  EXPECT_THAT(of({{"a", {{"dtype", "F32"}, {"shape", {-4}}, {"data_offsets", {0, 16}}}}}),
              HasSubstr("-4 is not a size"));
  EXPECT_THAT(of({{"a", {{"dtype", "F32"}, {"shape", {4}}}}}), HasSubstr("data_offsets"));
  EXPECT_THAT(of({{"a", {{"dtype", "F32"}, {"shape", {4}}, {"data_offsets", {0, 8, 16}}}}}),
              HasSubstr("data_offsets"));
  EXPECT_THAT(of({{"a\nb", 7}}), HasSubstr("tensor 'a\\nb' is 7"));
  const std::string twice = R"({"a":{"dtype":"U8","shape":[16],"data_offsets":[0,16]},)"
                            R"("a":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})";
  EXPECT_THAT(header_error(file_of(twice, data)), HasSubstr("'a' is given twice"));
}

TEST(SafetensorsIndex, RefusesWhatLeavesTheFolder) {
  const auto error = [](const json& index) -> std::string {
    try {
      parse_safetensors_index(index.dump(), "index.json");
    } catch (const Error& fault) {
      return fault.what();
    }
    return "no error";
  };
  EXPECT_EQ(error({{"weight_map", {{"a", "x.safetensors"}}}}), "no error");
  for (const json& shard : {json("../x"), json("/etc/passwd"), json("a/b"), json(".."), json(""),
                            json(std::string("a\0b", 3)), json(3)}) {
    EXPECT_THAT(error({{"weight_map", {{"a", shard}}}}), HasSubstr("inside the folder")) << shard;
  }
  EXPECT_THAT(error({{"metadata", {}}}), HasSubstr("weight_map"));
  EXPECT_THAT(error({{"weight_map", json::object()}}), HasSubstr("weight_map"));
}

class SafetensorsFolder : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string error() {
    try {
      SafetensorsReader reader(folder_);
    } catch (const Error& fault) {
      return fault.what();
    }
    return "no error";
  }
  std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) /
                                  testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(SafetensorsFolder, ReadsShards) {
  write("one", file_of({{"a", tensor("U8", {2}, 0, 2)}, {"b", tensor("BF16", {1}, 2, 4)}}, "wxyz"));
  write("two", file_of({{"c", tensor("F16", {2}, 0, 4)}}, "1234"));
  write("model.safetensors.index.json",
        json{{"weight_map", {{"a", "one"}, {"b", "one"}, {"c", "two"}}}}.dump());
  const SafetensorsReader reader(folder_);
  EXPECT_EQ(reader.names(), (std::vector<std::string>{"a", "b", "c"}));
  const auto view = reader.find("c");
  ASSERT_TRUE(view);
  EXPECT_EQ(view->dtype, DType::kF16);
  EXPECT_EQ(view->bytes, 4u);
  EXPECT_EQ(std::memcmp(view->data, "1234", 4), 0);
  EXPECT_EQ(std::memcmp(reader.find("b")->data, "yz", 2), 0);
  reader.release("c");
  EXPECT_EQ(std::memcmp(reader.find("c")->data, "1234", 4), 0);
  EXPECT_FALSE(reader.find("d"));
  EXPECT_THROW(reader.find("a"), Error);  // a type that we don't read, asked for
}

TEST_F(SafetensorsFolder, NamesWhatIsMissing) {
  EXPECT_THAT(error(), HasSubstr("model.safetensors.index.json"));
  write("one", file_of({{"a", tensor("U8", {2}, 0, 2)}}, "wx"));
  write("model.safetensors.index.json", json{{"weight_map", {{"a", "one"}, {"b", "gone"}}}}.dump());
  EXPECT_THAT(error(), HasSubstr("the shard 'gone'"));
  write("model.safetensors.index.json", json{{"weight_map", {{"a", "one"}, {"b", "one"}}}}.dump());
  EXPECT_THAT(error(), HasSubstr("tensor 'b' is not in 'one'"));
  write("model.safetensors", "");
  EXPECT_THAT(error(), HasSubstr("too few"));
}

TEST_F(SafetensorsFolder, APipeInAFilesPlaceIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(mkfifo((folder_ / "model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(error(), HasSubstr("is not a file"));
}

TEST(SafetensorsGolden, ReadsWhatTransformersWrites) {
  const SafetensorsReader single(kGoldenFolder / "qwen3_moe");
  const auto norm = single.find("model.norm.weight");
  ASSERT_TRUE(norm);
  EXPECT_EQ(norm->shape, std::vector<size_t>{64});
  EXPECT_EQ(norm->dtype, DType::kBf16);
  const SafetensorsReader sharded(kGoldenFolder / "mixtral-llama3-tied-sharded");
  EXPECT_TRUE(sharded.find("model.layers.2.block_sparse_moe.experts.7.w2.weight"));
}

}  // namespace
}  // namespace vamp
