#include "exec/executor_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace vamp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ExecutorConfig, DefaultsNeedOnlyAModel) {
  ExecutorConfig config;
  EXPECT_THAT(config.validate(), ElementsAre(HasSubstr("model: no folder")));
  config.model = VAMP_SOURCE_DIR;
  EXPECT_TRUE(config.validate().empty());
}

TEST(ExecutorConfig, AllFaultsAtOnce) {
  ExecutorConfig config;
  config.model = "/nonexistent/model";
  config.block_size = 0;
  config.max_offload_ratio = 101;
  config.page_bytes = 5000;
  config.kv_offloading_file = "kv.bin";
  EXPECT_THAT(config.validate(),
              ElementsAre(HasSubstr("/nonexistent/model"), HasSubstr("page_bytes: 5000"),
                          HasSubstr("block_size: 0"), HasSubstr("max_offload_ratio: 101"),
                          HasSubstr("kv_offloading_size")));
  EXPECT_THROW(config.check(), Error);
}

}  // namespace
}  // namespace vamp
