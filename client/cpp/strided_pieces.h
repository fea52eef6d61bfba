// Which bytes of an object go where, for a read of many pieces of it: rows, columns, cuts of tensors. What
// is wanted of a run of the object is copied while that run is in the cache, so that the object is read
// once however many pieces want something of it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "client/cpp/session.h"
#include "common/status.h"

namespace cairn::client {

// Constant once made; its destinations are the caller's.
class StridedPieces {
 public:
  // INVALID_ARGUMENT names the piece and the field that leaves the object's `length` bytes or means nothing.
  static StatusOr<StridedPieces> Make(absl::Span<const StridedPiece> pieces, uint64_t length);

  // The blocks of which some byte is wanted, ascending.
  const std::vector<uint64_t>& blocks() const { return blocks_; }

  // Copies what is wanted of [begin, begin+length) of the object, which is `bytes` and lies in blocks()[i].
  // Returns the CRC32C of what `crc` covers followed by `bytes`. Several threads at once, of other runs.
  uint32_t Copy(size_t i, uint64_t begin, uint64_t length, const char* bytes, uint32_t crc) const;
  // The same of `bytes` that somebody may change meanwhile: what is copied is what was summed, or for long runs was
  // summed a moment before, as CopyCrc32c does. `scratch` has `length` bytes.
  uint32_t CopyOnce(size_t i, uint64_t begin, uint64_t length, const char* bytes, char* scratch,
                    uint32_t crc) const;

 private:
  struct Dim {
    uint64_t count = 0;
    uint64_t from = 0;  // stride in the object
    int64_t into = 0;   // stride in memory
    uint64_t span = 0;  // bytes of the object from the first byte to the last of one step
  };
  // A piece in the order in which it lies in the object. Dimensions that go on where the next one ends are
  // one, and an innermost one without gaps on either side is a run of bytes.
  struct Piece {
    uint64_t begin = 0;
    uint64_t end = 0;
    char* into = nullptr;  // of the byte at `begin`
    uint64_t run = 0;      // bytes
    size_t first_dim = 0;  // of dims_
    size_t dims = 0;
  };
  class Chunk;
  using InBlock = std::pair<uint64_t, uint32_t>;  // a block, and a piece that wants something of it

  Status Add(const StridedPiece& piece, size_t number, uint64_t length);
  Status AddDims(const StridedPiece& piece, size_t number, uint64_t length, Piece* made);
  void JoinDims(size_t first);
  void SortIntoBlocks();
  bool OnlyRuns(size_t i, uint64_t begin, uint64_t end) const;
  bool OnlyLongRuns(size_t i, uint64_t begin, uint64_t end) const;
  uint32_t CopyLongRuns(size_t i, uint64_t begin, uint64_t length, const char* bytes,
                        uint32_t crc) const;
  void FindBlocks(uint32_t number, size_t d, uint64_t at, std::vector<InBlock>* touched) const;

  std::vector<Dim> dims_;  // of all pieces, outermost first
  std::vector<Piece> pieces_;
  std::vector<uint64_t> blocks_;
  std::vector<size_t> starts_;    // in wanted_, of each of blocks_; and one more entry
  std::vector<uint32_t> wanted_;  // of each block those that begin first come first
};

}  // namespace cairn::client
