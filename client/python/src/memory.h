// Bytes that a save reads from Python's objects, and memory that a load gives to Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/types/span.h"
#include "client/cpp/session.h"
#include "common/status.h"

namespace cairn::python {

namespace py = pybind11;

// The runs of bytes of one object being saved. Each is added as a pair (where, length): `where` is an
// address as int, which the caller keeps valid until the call returns, an object with contiguous bytes,
// which is held here, or (descriptor, offset) of a file that stays open until the call returns. Made and
// destroyed with the GIL.
class Sources {
 public:
  Sources() = default;
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;
  ~Sources();

  // Raises ValueError or BufferError.
  void Add(const py::handle& where, uint64_t length);
  absl::Span<const client::Source> span() const { return list_; }

 private:
  std::vector<client::Source> list_;
  std::vector<Py_buffer> views_;
};

// A run of writable bytes with the buffer protocol. It lives until the last view of it is gone: a
// tensor over one keeps the mapping alive, and with it the lease.
struct Region {
  std::shared_ptr<void> owner;
  char* data = nullptr;
  uint64_t length = 0;
};

// Private zero pages. Does not need the GIL.
StatusOr<Region> MakeMemory(uint64_t length);
py::buffer_info RegionBuffer(Region& region);
// (name, offset, length) of every record of the zip archive in `region`.
std::vector<std::tuple<py::str, uint64_t, uint64_t>> ZipDirectory(const Region& region);

}  // namespace cairn::python
