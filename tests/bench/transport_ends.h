// The transport alone, as the bench rows of rings measure it: memory that one node owns, and all of it
// read by another one.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "common/fd.h"
#include "common/status.h"
#include "server/transport/transport.h"
#include "tests/bench/harness.h"

namespace cairn::bench {

inline constexpr SlabId kSlab = 1;  // what both ends call their only one

// A memfd, every page of it there, and a mapping of it.
struct Memory {
  SharedFd fd;
  Mapping mapping;
  static StatusOr<Memory> Make(uint64_t bytes);
};

// Other bytes for every seed.
void Fill(const Memory& memory, uint64_t seed);
// DATA_LOSS unless it holds what Fill writes.
Status Check(const Memory& memory, uint64_t seed);

// What an owner says of its memory: where it is, and the checksum of each block.
struct Owned {
  std::string address;
  transport::GrantToken token = {};
  std::string region;
  absl::Span<const uint32_t> crcs;
};

// Reads so many bytes into the reader's slab, 64 MiB of them under way, from the beginning again where
// the owner's memory ends; how many milliseconds that took. Every block is whole, and was compared.
StatusOr<double> ReadAll(transport::Transport* reader, const Owned& owned, uint64_t bytes);

// Halves of rows that tests/bench/ring_bench.py measures, on hosts that it has made. Each answers a line
// of JSON on stdin with one on stdout, until there are no more.
//   owner   {"seed"}                            {"address", "token", "region", "crcs"}, its memory filled
//   reader  the same, and {"seed", "length"}    {"ms"}: read, and compared byte for byte afterwards
StatusOr<Values> TransportOwnerChild(const Values& arguments);   // listen, bytes
StatusOr<Values> TransportReaderChild(const Values& arguments);  // bytes

}  // namespace cairn::bench
