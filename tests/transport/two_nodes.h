// Two transports that know each other, a slab on each, and reads that wait for their end.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "common/checksum.h"
#include "server/transport/tcp_transport.h"
#include "tests/support/patience.h"

namespace cairn::transport {

inline constexpr SlabId kOwned = 11, kFetched = 22;
inline constexpr PeerId kReader = {.rank = 2, .incarnation = 7};

inline std::string Noise(size_t bytes, unsigned seed) {
  std::string noise(bytes, '\0');
  std::mt19937_64 random(seed);
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(noise.data() + at, &word, std::min(sizeof(word), bytes - at));
  }
  return noise;
}

class Memory {
 public:
  explicit Memory(const std::string& bytes) : Memory(bytes.size()) { Write(0, bytes); }
  explicit Memory(size_t bytes) : bytes_(bytes) {
    auto made = MakeMemfd("transport-test", bytes, 0600);
    EXPECT_TRUE(made.ok()) << made.status();
    fd_ = std::make_shared<const UniqueFd>(*std::move(made));
  }
  SharedFd fd() const { return fd_; }
  size_t size() const { return bytes_; }
  void Write(uint64_t offset, const std::string& bytes) {
    EXPECT_TRUE(PwriteAll(fd_->get(), bytes.data(), bytes.size(), offset).ok());
  }
  std::string Read(uint64_t offset, size_t length) const {
    std::string bytes(length, '\0');
    EXPECT_TRUE(PreadAll(fd_->get(), bytes.data(), length, offset).ok());
    return bytes;
  }

 private:
  size_t bytes_;
  SharedFd fd_;
};

// Longer than any test machine stands still, where a test is not about it.
inline const MonotonicNanos kLongStall = testing::Patient(60 * kNanosPerSecond);

inline std::unique_ptr<TcpTransport> StartTcp(
    PeerId self, TcpServerOptions server = {.stall = kLongStall, .idle = kLongStall},
    TcpReaderOptions reader = {.stall = kLongStall, .idle = kLongStall}) {
  reader.self = self;
  auto started = TcpTransport::Start(server, reader);
  EXPECT_TRUE(started.ok()) << started.status();
  return started.ok() ? *std::move(started) : nullptr;
}

inline MonotonicNanos After(int64_t seconds) {
  return RealClock()->Now() + testing::Patient(seconds * kNanosPerSecond);
}

// A read of [offset, offset+length) of `region`, to the same place in the slab `into`.
inline ReadRequest ReadOf(const Transport& owner, const GrantToken& token,
                          const std::string& region, uint64_t offset, uint64_t length,
                          const Memory& into) {
  return {owner.Address(), token,  region,    offset, {kFetched, 0, into.size()},
          offset,          length, After(120)};
}

inline std::future<StatusOr<uint32_t>> Begin(Transport* reader, ReadRequest request) {
  auto promise = std::make_shared<std::promise<StatusOr<uint32_t>>>();
  std::future<StatusOr<uint32_t>> future = promise->get_future();
  reader->Read(std::move(request), [promise](StatusOr<uint32_t> crc) { promise->set_value(crc); });
  return future;
}
inline StatusOr<uint32_t> ReadNow(Transport* reader, ReadRequest request) {
  return Begin(reader, std::move(request)).get();
}

// All of a region in blocks, with at most `ahead` under way; the first error.
inline Status ReadAllOf(Transport* reader, const Transport& owner, const GrantToken& token,
                        const std::string& region, const std::string& bytes, const Memory& into,
                        size_t ahead = 8) {
  std::deque<std::pair<uint64_t, std::future<StatusOr<uint32_t>>>> under_way;
  const auto end_one = [&]() -> Status {
    const uint64_t at = under_way.front().first;
    const StatusOr<uint32_t> crc = under_way.front().second.get();
    under_way.pop_front();
    if (!crc.ok()) return crc.status();
    const uint64_t length = std::min<uint64_t>(kBlockBytes, bytes.size() - at);
    return *crc == Crc32c(0, bytes.data() + at, length) ? absl::OkStatus()
                                                        : absl::DataLossError("checksum");
  };
  Status first;
  for (uint64_t at = 0; at < bytes.size(); at += kBlockBytes) {
    const uint64_t length = std::min<uint64_t>(kBlockBytes, bytes.size() - at);
    under_way.emplace_back(at, Begin(reader, ReadOf(owner, token, region, at, length, into)));
    if (under_way.size() == ahead) first.Update(end_one());
  }
  while (!under_way.empty()) first.Update(end_one());
  return first;
}

}  // namespace cairn::transport
