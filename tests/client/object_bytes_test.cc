// The bytes of an object as somebody asks for them.
#include "client/cpp/object_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/checksum.h"
#include "common/keys.h"

namespace cairn::client {
namespace {

class Archive : public ::testing::Test {
 protected:
  Archive() : data_(kBlockBytes + 12345, 'a') {
    auto plan =
        ZipPlan::Make({{"archive/data.pkl", pickled_.size()}, {"archive/data/0", data_.size()}});
    EXPECT_TRUE(plan.ok()) << plan.status();
    plan_ = *std::move(plan);
    const Source records[] = {{pickled_.data(), pickled_.size()}, {data_.data(), data_.size()}};
    auto layout = ObjectLayout::Of(records, &plan_);
    EXPECT_TRUE(layout.ok()) << layout.status();
    layout_ = *std::move(layout);
  }

  const std::string pickled_ = "pickled";
  std::string data_;
  ZipPlan plan_;
  ObjectLayout layout_;
};

TEST_F(Archive, HasTheChecksumsOfWhatIsRead) {
  const auto bytes = ObjectBytes::Make(&layout_);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto crcs = bytes->BlockCrcs();
  ASSERT_TRUE(crcs.ok()) << crcs.status();
  std::string whole(bytes->length(), '\0');
  ASSERT_TRUE(bytes->Read(0, whole.size(), whole.data()).ok());
  EXPECT_EQ(*crcs, BlockCrcs(whole.data(), whole.size(), kBlockBytes));
}

// Its own checksum stands in the archive, and was taken before.
TEST_F(Archive, OfWhatHasChangedSinceHasNone) {
  const auto bytes = ObjectBytes::Make(&layout_);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  data_.back() = 'b';
  const Status changed = bytes->BlockCrcs().status();
  EXPECT_EQ(changed.code(), absl::StatusCode::kFailedPrecondition) << changed;
  EXPECT_THAT(std::string(changed.message()), ::testing::HasSubstr("changed"));
}

}  // namespace
}  // namespace cairn::client
