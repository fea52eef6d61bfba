// What Cairn uses of an RDMA device, and no more: files registered in memory, queue pairs that read, and where
// their completions arrive. A thin seam over libibverbs (ibverbs.h), so that what stands on it can be tested
// where there is no device, and with a device's failures (tests/transport/fake_verbs.h). Nothing above this
// file sees libibverbs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/status.h"

namespace cairn::transport {

// The address of a port in its network, in 16 bytes: of RoCE an IPv6 address, or an IPv4 one in IPv6's form.
using Gid = std::array<uint8_t, 16>;
enum class GidKind : uint8_t { kInfiniband, kRoceV1, kRoceV2 };

struct VerbsGid {
  int index = 0;  // in the port's table
  GidKind kind = GidKind::kInfiniband;
  Gid gid = {};
};

struct VerbsPort {
  int number = 0;  // from 1
  bool active = false;
  bool ethernet = false;  // RoCE, else InfiniBand
  int mtu_bytes = 0;      // of its packets now
  uint16_t lid = 0;       // InfiniBand's address within a subnet
  std::vector<VerbsGid> gids;
};

struct VerbsLimits {
  uint64_t region_bytes = 0;  // of one registration
  int queue_pairs = 0;
  int queued = 0;       // requests of one queue pair
  int completions = 0;  // of one completion queue
  int reads_out = 0;    // that one queue pair has under way as the reader …
  int reads_in = 0;     // … and as the owner
};

struct VerbsDeviceInfo {
  std::string name;
  VerbsLimits limits;
  std::vector<VerbsPort> ports;
};

// What both ends of a queue pair must know of each other.
struct VerbsEndpoint {
  uint32_t queue = 0;         // the device's number of it
  uint32_t first_packet = 0;  // 24 bits
  bool ethernet = false;
  uint16_t lid = 0;
  Gid gid = {};
  int mtu_bytes = 0;
  int reads_in = 0;  // at once, as the owner
};

// Bytes of a file that the device may write, and whoever is connected to a queue pair of it and has the remote
// key may read. Addressed by their offsets in the file. Its end takes both rights away: on return the device
// touches them no more.
class VerbsRegion {
 public:
  virtual ~VerbsRegion() = default;
  virtual uint32_t local_key() const = 0;
  virtual uint32_t remote_key() const = 0;
};

struct VerbsRead {
  uint64_t id = 0;  // its completion has it
  uint32_t local_key = 0;
  uint64_t local_offset = 0;
  uint32_t remote_key = 0;
  uint64_t remote_offset = 0;
  uint32_t length = 0;
};

// CANCELLED: flushed, because its queue pair is broken. PERMISSION_DENIED: the owner refused the key or the
// range. UNAVAILABLE: the peer did not answer. INTERNAL: any other. After each of them the queue pair is broken.
struct VerbsCompletion {
  uint64_t id = 0;
  Status status;
};

// Where completions arrive. Thread-safe, apart from Arm and Clear.
class VerbsCompletions {
 public:
  virtual ~VerbsCompletions() = default;
  // Takes those that have arrived; how many.
  virtual StatusOr<int> Poll(absl::Span<VerbsCompletion> into) = 0;
  // Readable once one has arrived after Arm. Poll again after Arm: what came before says nothing.
  virtual int fd() const = 0;
  virtual Status Arm() = 0;
  virtual void Clear() = 0;  // makes `fd` unreadable
};

// A reliable connection, over which the owner's memory is read. Thread-safe.
class VerbsQueuePair {
 public:
  // On return the device does nothing for it any more, neither as the reader nor as the owner. What was posted
  // may have no completion.
  virtual ~VerbsQueuePair() = default;
  virtual VerbsEndpoint endpoint() const = 0;
  virtual Status Connect(const VerbsEndpoint& peer) = 0;  // once
  // RESOURCE_EXHAUSTED when its queue is full.
  virtual Status PostRead(const VerbsRead& read) = 0;
  // What was posted completes soon, some of it as CANCELLED, and the peer's reads fail.
  virtual Status Break() = 0;
};

// Outlives all that was made of it. Thread-safe.
class VerbsDevice {
 public:
  virtual ~VerbsDevice() = default;
  // As it was when it was opened.
  virtual const VerbsDeviceInfo& info() const = 0;
  // As it is now: ports go down and up, and their networks get other addresses.
  virtual StatusOr<VerbsPort> Port(int number) const = 0;
  // Bytes [offset, offset+length) of a file, page by page: both are multiples of a page, but for the file's end.
  // Faults in what is missing. The caller may close `fd`.
  // RESOURCE_EXHAUSTED: memory could not be locked, or the device has no more registrations.
  virtual StatusOr<std::unique_ptr<VerbsRegion>> Register(int fd, uint64_t offset,
                                                          uint64_t length) = 0;
  virtual StatusOr<std::unique_ptr<VerbsCompletions>> MakeCompletions(int depth) = 0;
  // From the port's gid to a peer of the same network. At most `depth` reads are posted at once.
  virtual StatusOr<std::unique_ptr<VerbsQueuePair>> MakeQueuePair(
      const VerbsPort& port, const VerbsGid& gid, int depth, VerbsCompletions* completions) = 0;
};

// The gid by which a port is best reached: of RoCE version 2, which routers pass on, an IPv4 one before an IPv6
// one; of InfiniBand the first. UNAVAILABLE, saying what is wrong, for a port that is down or has none.
StatusOr<VerbsGid> ChooseGid(const VerbsDeviceInfo& device, const VerbsPort& port);

}  // namespace cairn::transport
