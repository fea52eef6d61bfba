// Bytes that a save reads from Python's objects, and memory that a load gives to Python.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "client/cpp/device_reader.h"
#include "client/cpp/session.h"
#include "common/status.h"
#include "common/zip.h"

namespace cairn::python {

namespace py = pybind11;

// An address of a device's memory, which the caller keeps valid until the call that is given this returns. What the stream
// was asked for before that call comes first.
struct OnDevice {
  int device = 0;  // client/python/src/devices.h
  uint64_t address = 0;
  uintptr_t stream = 0;
};

// The runs of bytes of one object being saved. Each is added as a pair (where, length): `where` is an
// address as int, which the caller keeps valid until the call returns, an object with contiguous bytes,
// which is held here, an OnDevice, or (descriptor, offset) of a file that stays open until the call returns. Made and
// destroyed with the GIL.
class Sources {
 public:
  Sources() = default;
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;
  ~Sources();

  // Raises ValueError or BufferError, and what opening a device says.
  void Add(const py::handle& where, uint64_t length);
  absl::Span<const client::Source> span() const { return list_; }

 private:
  std::vector<client::Source> list_;
  std::vector<Py_buffer> views_;
  std::map<std::pair<int, uintptr_t>, std::unique_ptr<client::DeviceReader>> devices_;
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
// Memory to write what nobody will read: few pages, mapped over and over. Does not need the GIL.
StatusOr<Region> MakeScratch(uint64_t length);
py::buffer_info RegionBuffer(Region& region);
py::str NameOf(const ZipEntry& record);
// (name, offset, length) of every record of the zip archive in `region`.
std::vector<std::tuple<py::str, uint64_t, uint64_t>> ZipDirectory(const Region& region);

}  // namespace cairn::python
