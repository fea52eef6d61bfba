// Bytes that this process's processors cannot reach, as those in a GPU's memory: who knows the device brings them.
// client/gpu/device_saver.h does.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "client/cpp/standing.h"
#include "common/status.h"

namespace cairn::client {

// Thread-safe.
class DeviceReader {
 public:
  struct Piece {
    uint64_t from = 0;  // an address of the device's
    char* into = nullptr;
    uint64_t bytes = 0;  // at most kBlockBytes
    bool wants_zip_crc = false;
    // Set by Read: of what lay on the device.
    uint32_t crc32c = 0;
    uint32_t zip_crc = 0;
  };

  virtual ~DeviceReader() = default;
  // Pieces of the next Read lie in a slab that is mapped at `data`; `place` is how to have it mapped for good, and
  // registered with the device.
  struct Room {
    char* data = nullptr;
    uint64_t bytes = 0;
    StandingPlace place;
  };
  virtual void Into(Room room) { (void)room; }
  // Copies each piece, and takes its checksums. When it returns, nothing is written any more, after an error too.
  virtual Status Read(absl::Span<Piece> pieces) = 0;
};

}  // namespace cairn::client
