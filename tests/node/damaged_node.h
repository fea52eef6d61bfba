// A node whose journal a test damages while it is down.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/checksum.h"
#include "server/journal/frame.h"
#include "tests/node/saving_node.h"

namespace cairn::testing {

inline constexpr uint64_t kHeaderPage = 4096;
inline constexpr uint64_t kNonce = 77;

class DamagedNode : public SavingNode {
 protected:
  void SetUp() override {
    with_storage_ = false;  // nothing comes back but from memory
    SavingNode::SetUp();
    options_.journal.nonce = kNonce;
    journal_ = *journal::Journal::MakeFile(options_.journal);
  }

  std::string Image() const {
    struct stat stat = {};
    EXPECT_EQ(::fstat(journal_.get(), &stat), 0);
    std::string image(static_cast<size_t>(stat.st_size), '\0');
    EXPECT_EQ(PreadAll(journal_.get(), image.data(), image.size(), 0), absl::OkStatus());
    return image;
  }
  // Where the frames of the first half begin in the file, and where the last one ends.
  std::vector<uint64_t> Frames() const {
    const std::string image = Image();
    std::vector<uint64_t> frames = {kHeaderPage};
    for (uint32_t magic = 0, length = 0;;) {
      std::memcpy(&magic, &image[frames.back()], 4);
      if (magic != journal::kFrameMagic) return frames;
      std::memcpy(&length, &image[frames.back() + 4], 4);
      frames.push_back(frames.back() + (journal::kFrameHeaderBytes + length + 7) / 8 * 8);
    }
  }
  // The journal says of a slab of the pool that it is nobody's.
  bool PoolIsReady() const {
    const std::vector<Fact> facts =
        journal::ReplayHalf(absl::string_view(Image()).substr(kHeaderPage), {kNonce, 0}).facts;
    return std::any_of(facts.begin(), facts.end(), [](const Fact& fact) {
      const auto* slab = std::get_if<fact::Slab>(&fact);
      return slab != nullptr && slab->use == fact::SlabUse::kObjects && slab->owner_job.empty();
    });
  }
  void Write(uint64_t at, const std::string& bytes) {
    ASSERT_EQ(PwriteAll(journal_.get(), bytes.data(), bytes.size(), at), absl::OkStatus());
  }
  void Flip(uint64_t at) {
    std::string byte = Image().substr(at, 1);
    byte[0] = static_cast<char>(byte[0] ^ 4);
    Write(at, byte);
  }
  // Gives the first fact of the frame another kind.
  void SetKind(uint64_t frame, uint8_t kind) {
    std::string bytes = Image().substr(frame);
    uint32_t length = 0;
    std::memcpy(&length, &bytes[4], 4);
    bytes.resize(journal::kFrameHeaderBytes + length);
    bytes[journal::kFrameHeaderBytes + 4] = static_cast<char>(kind);
    uint32_t crc = Crc32c(0, &kNonce, sizeof(kNonce));
    crc = Crc32c(crc, &bytes[4], 12);
    crc = Crc32c(crc, &bytes[journal::kFrameHeaderBytes], length);
    std::memcpy(&bytes[16], &crc, 4);
    Write(frame, bytes);
  }
  // What the node answers as the job's latest; -1: nothing.
  Step Latest(SessionId session, const std::string& job = "job") {
    engine::event::Latest latest;
    latest.caller = CallerOf(session);
    latest.job = job;
    latest.deadline = Soon();
    const node::Answer answer = node().Call(std::move(latest));
    return answer.body.ok() ? std::get<engine::reply::Latest>(*answer.body).key.step : -1;
  }
  Status Remove(SessionId session, Step step, bool memory_only = false) {
    engine::event::Remove remove;
    remove.caller = CallerOf(session);
    remove.ref = {"job", step};
    remove.memory_only = memory_only;
    remove.force = true;
    remove.deadline = Soon();
    return node().Call(std::move(remove)).body.status();
  }
  // Writes into a slab as a process that maps it does.
  void Scribble(SlabId slab, const std::string& bytes) {
    const node::Inherited held = keeper_.Inherit(journal_, fd_listener_);
    const auto at = std::find_if(held.slabs.begin(), held.slabs.end(),
                                 [slab](const node::HeldSlab& one) { return one.slab == slab; });
    ASSERT_NE(at, held.slabs.end());
    ASSERT_EQ(PwriteAll(at->fd.get(), bytes.data(), bytes.size(), 0), absl::OkStatus());
  }
  // The extent and the record of a part that was committed, as the journal tells.
  fact::PartCommitted Committed(const std::string& job, Step step) const {
    const auto replay =
        journal::ReplayHalf(absl::string_view(Image()).substr(kHeaderPage), {kNonce, 0});
    for (const Fact& fact : replay.facts) {
      const auto* committed = std::get_if<fact::PartCommitted>(&fact);
      if (committed == nullptr || committed->part.checkpoint.job != job) continue;
      if (committed->part.checkpoint.step == step) return *committed;
    }
    ADD_FAILURE() << "not committed";
    return {};
  }
  std::string State() {
    StatusOr<node::NodeState> state = node().State(CallerOf(0));
    EXPECT_TRUE(state.ok()) << state.status();
    return state.ok() ? state->state : "";
  }
};

}  // namespace cairn::testing
