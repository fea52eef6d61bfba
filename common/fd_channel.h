// The fd channel: the second Unix socket of a session (SOCK_SEQPACKET), over which descriptors
// travel. proto/README.md describes it for people who write other clients.
//
// Every message is one packet: FdHeader, then the body of its type, little-endian, no padding.
// The client sends Attach once; afterwards the daemon pushes Slab and Object messages, each
// *before* the Thrift reply that mentions its lease, so a client that has read the reply finds the
// message waiting. A daemon never blocks on this socket: when the client does not read, the Thrift
// call fails with RESOURCE_EXHAUSTED and nothing is lent.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/keys.h"
#include "common/status.h"

namespace cairn {

inline constexpr uint32_t kFdChannelMagic = 0x4E524143;  // "CARN"
inline constexpr uint16_t kFdChannelVersion = 1;
inline constexpr size_t kFdChannelMaxMessage = 512;

enum class FdMessageType : uint16_t {
  kAttach = 1,    // client → daemon, with the client's pidfd: session, secret
  kAttached = 2,  // daemon → client, with the progress page's fd: status code
  kSlab = 3,      // daemon → client, with a slab's fd (read-write for a writer, else read-only)
  kFile = 4,      // daemon → client, with a read-only fd of a file in storage
};

struct FdHeader {
  uint32_t magic = kFdChannelMagic;
  uint16_t version = kFdChannelVersion;
  uint16_t type = 0;
};
struct FdAttach {
  FdHeader header;
  uint64_t session = 0;
  uint8_t secret[16] = {};
};
struct FdAttached {
  FdHeader header;
  int32_t code = 0;  // absl::StatusCode; the connection closes unless 0
};
struct FdSlab {  // also kFile, with slab = 0
  FdHeader header;
  uint64_t lease = 0;
  uint64_t slab = 0;
  uint64_t bytes = 0;  // length of the slab or file
};
static_assert(sizeof(FdHeader) == 8 && sizeof(FdAttach) == 32 && sizeof(FdSlab) == 32);

// The shared page of a session: how far its writer has come. One writer (the client), readers that
// trust nothing: values are shown to people and never decide anything. 64-byte slots, one per
// writer thread would tear nothing, so plain relaxed atomics over one slot suffice.
struct ProgressPage {
  uint64_t magic = 0;  // kProgressMagic
  uint64_t step = 0;
  uint64_t bytes_total = 0;  // of the step being written; 0 when none is
  uint64_t bytes_done = 0;   // atomically added to by the copy threads
};
inline constexpr uint64_t kProgressMagic = 0x31475250'4E524143ull;

}  // namespace cairn
