#include "client/cpp/slab_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "client/cpp/copy_threads.h"
#include "client/cpp/slab_map.h"
#include "common/keys.h"

namespace cairn::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kBytes = 3 * uint64_t{kBlockBytes};

class SlabViewTest : public ::testing::Test {
 protected:
  SlabViewTest() {
    const auto memory = MakeMemfd("slab", kBytes, 0600);
    EXPECT_TRUE(memory.ok()) << memory.status();
    auto slab = map_.Map(7, kBytes, *memory);
    EXPECT_TRUE(slab.ok()) << slab.status();
    slab_ = *std::move(slab);
  }

  std::shared_ptr<SlabView> View(uint64_t offset, uint64_t length) {
    auto view = SlabView::Make(slab_, offset, length, &threads_);
    EXPECT_TRUE(view.ok()) << view.status();
    return *std::move(view);
  }

  CopyThreads threads_{2};
  SlabMap map_;
  std::shared_ptr<MappedSlab> slab_;
};

TEST_F(SlabViewTest, ShowsItsPartOfTheSlabUntilItsEnd) {
  const auto view = View(kPageBytes, kBytes - kPageBytes);
  view->data()[5] = 'x';
  EXPECT_EQ(slab_->data()[kPageBytes + 5], 'x');
  ASSERT_TRUE(view->End().ok());
  view->data()[5] = 'y';
  EXPECT_EQ(slab_->data()[kPageBytes + 5], 'x');
  EXPECT_EQ(view->bytes()[5], 'x');
  view->Leave();
  view->data()[5] = 'z';
  EXPECT_EQ(slab_->data()[kPageBytes + 5], 'x');
}

TEST_F(SlabViewTest, TheNextOneHasThePageTablesOfTheLast) {
  auto view = View(0, kBytes);
  ASSERT_TRUE(view->End().ok());
  const char* const filled = view->bytes();
  view->Leave();
  auto next = View(0, kBytes - 5);  // as many pages
  EXPECT_EQ(next->data(), filled);
  const auto beside = View(0, kPageBytes);
  EXPECT_NE(beside->data(), filled);
  for (SlabView* ended : {beside.get(), next.get()}) {
    ASSERT_TRUE(ended->End().ok());
    ended->Leave();
  }
  next = View(0, kBytes);  // the longer one was kept
  next->data()[kBytes - 1] = 'x';
  EXPECT_EQ(slab_->data()[kBytes - 1], 'x');
  EXPECT_NE(View(kPageBytes, kPageBytes)->data(), next->data() + kPageBytes);
}

// A reader of its memory may keep it for ever; the node gets the slab back all the same.
TEST_F(SlabViewTest, ASlabIsUnmappedWhenItsViewsHaveLeft) {
  const auto left = View(0, kPageBytes), ended = View(0, kPageBytes);
  auto used = View(kPageBytes, kPageBytes);
  slab_.reset();
  map_.Retire(7);
  ASSERT_TRUE(left->End().ok());
  left->Leave();
  ASSERT_TRUE(ended->End().ok());
  EXPECT_THAT(map_.TakeUnmapped(), IsEmpty());
  ended->Leave();
  EXPECT_THAT(map_.TakeUnmapped(), IsEmpty());
  used.reset();
  EXPECT_THAT(map_.TakeUnmapped(), ElementsAre(7));
  left->data()[0] = 'x';
}

}  // namespace
}  // namespace cairn::client
