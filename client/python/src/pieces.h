// Reading many pieces of an object, and finding in its archives what to read.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "client/cpp/session.h"
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

}  // namespace cairn::python
