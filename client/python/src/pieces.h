// Reading many pieces of an object, and finding in its archives what to read.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/session.h"
#include "client/cpp/strided_pieces.h"
#include "client/python/src/memory.h"
#include "common/zip.h"

namespace cairn::python {

namespace py = pybind11;

// Beginnings and ends of archives in an object, as they lie there and not verified: where their records are, and the
// small ones among them. What is found is to be trusted once ReadPieces has returned true for it.
class ArchiveEnds {
 public:
  // `places`: (offset, length) of each in the object. Of an object that comes in chunks nothing is known.
  static ArchiveEnds Peek(client::OpenObject& object, const py::sequence& places);

  size_t size() const { return archives_.size(); }
  // ([(name, offset in the archive, length)], its first bytes); None where the ends were too short to tell.
  py::object At(size_t index) const;

  // What the records were found in.
  const std::vector<client::ObjectRange>& ranges() const { return ranges_; }
  const std::string& bytes() const { return bytes_; }

 private:
  struct Archive {
    std::vector<ZipEntry> records;  // empty: unknown
    uint64_t head = 0;              // in bytes_
    uint64_t head_length = 0;
  };

  void Keep(uint64_t place, const ZipEnds& ends, Archive* archive);

  std::vector<Archive> archives_;
  std::vector<client::ObjectRange> ranges_;
  std::string bytes_;
};

// pieces: (offset, item bytes, shape, strides in the object, where, strides there) each, in bytes; `where` is an
// address, which the caller keeps valid, or a Region. False: the object does not have the bytes that `peeked`, which may
// be null, was made of.
bool ReadPieces(client::OpenObject& object, const py::sequence& pieces, const ArchiveEnds* peeked);

// The same of blocks that somebody else has read: says which blocks the pieces want something of, and takes them one run
// after the other. Needs the object only to be made. Regions that pieces go to are the caller's to keep.
class BlockPieces {
 public:
  // Raises as ReadPieces for pieces that mean nothing.
  static BlockPieces Make(client::OpenObject& object, const py::sequence& pieces,
                          const ArchiveEnds* peeked);

  // (first block, blocks) of each run, ascending.
  std::vector<std::pair<uint64_t, uint64_t>> Runs() const;
  // The object's blocks from `first` on, which are all of `bytes`. Raises Corrupt for one that does not match its
  // checksum. Several threads at once, of other blocks.
  void Put(uint64_t first, const Region& bytes) const;
  // Once all have been put: whether the object has the bytes that `peeked` was made of.
  bool PeekedHolds() const { return *again_ == peeked_; }

 private:
  BlockPieces(std::string what, uint64_t length, std::vector<uint32_t> crcs,
              client::StridedPieces pieces, std::string peeked, std::unique_ptr<std::string> again)
      : what_(std::move(what)),
        length_(length),
        crcs_(std::move(crcs)),
        pieces_(std::move(pieces)),
        peeked_(std::move(peeked)),
        again_(std::move(again)) {}

  std::string what_;
  uint64_t length_;
  std::vector<uint32_t> crcs_;
  client::StridedPieces pieces_;
  std::string peeked_;
  std::unique_ptr<std::string> again_;  // where the pieces put it: it keeps its address
};

}  // namespace cairn::python
