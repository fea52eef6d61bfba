// The fd channel: the second Unix socket of a session (SOCK_SEQPACKET), over which descriptors
// travel. Both halves encode and decode here; proto/README.md describes the protocol for people
// who write other clients.
//
// Every message is one packet: a header, then the body of its type, little-endian, no padding:
//   header    0  4  magic "CARN"
//             4  2  version (1)
//             6  2  type
//   attach    8  8  session
//            16 16  secret                         with the client's own pidfd
//   attached  8  4  status code, 0: attached       with the progress page, if attached
//   slab      8  8  lease
//            16  8  slab
//            24  8  bytes of the slab              with the slab, read-write for a writer
//   file          as slab, slab = 0                with a file in storage, read-only
//
// The client sends one attach, and the daemon answers it with attached. Afterwards the daemon alone
// sends: a slab or file message *before* the Thrift reply that mentions its lease, so a client that
// has read the reply finds the message waiting. The daemon never blocks on this socket: when the
// client does not read, the Thrift call fails with RESOURCE_EXHAUSTED and nothing is lent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/keys.h"
#include "common/status.h"

namespace cairn {

inline constexpr size_t kFdChannelMaxMessage = 512;
inline constexpr size_t kSessionSecretBytes = 16;

struct FdAttach {
  SessionId session = 0;
  std::string secret;  // kSessionSecretBytes
};

struct FdAttached {
  absl::StatusCode code = absl::StatusCode::kOk;  // the daemon closes the channel unless OK
};

struct FdLent {
  enum class What : uint8_t { kSlab, kFile };
  What what = What::kSlab;
  LeaseId lease = 0;
  SlabId slab = 0;     // 0 for a file
  uint64_t bytes = 0;  // of the slab or file
};

// INVALID_ARGUMENT when the secret has another length.
StatusOr<std::string> Encode(const FdAttach& attach);
std::string Encode(const FdAttached& attached);
std::string Encode(const FdLent& lent);

// INVALID_ARGUMENT for bytes that are no such message, UNIMPLEMENTED for one of another version.
// The descriptor that comes with a message is for the receiver to check.
StatusOr<FdAttach> DecodeFdAttach(absl::string_view bytes);
StatusOr<FdAttached> DecodeFdAttached(absl::string_view bytes);
StatusOr<FdLent> DecodeFdLent(absl::string_view bytes);

// The shared page of a session: how far its writer has come. The client writes it whenever it
// likes, with plain relaxed stores; the daemon shows the values to people and decides nothing by
// them, so it does not matter when they do not belong together.
struct ProgressPage {
  uint64_t magic = 0;  // kProgressMagic
  uint64_t step = 0;
  uint64_t bytes_total = 0;  // of the step being written; 0 when none is
  uint64_t bytes_done = 0;   // atomically added to by the copy threads
};
inline constexpr uint64_t kProgressMagic = 0x31475250'4E524143ull;

// What a progress page of kPageBytes says; nullopt when it says that nothing is being written.
std::optional<ProgressPage> ReadProgressPage(const char* page);

}  // namespace cairn
