#include "client/python/src/memory.h"

#include <pybind11/stl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "client/cpp/huge_memory.h"
#include "client/python/src/call.h"
#include "client/python/src/devices.h"
#include "common/fd.h"
#include "common/keys.h"

namespace cairn::python {

Sources::~Sources() {
  for (Py_buffer& view : views_) PyBuffer_Release(&view);
}

void Sources::Add(const py::handle& where, uint64_t length) {
  if (PyLong_Check(where.ptr())) {
    list_.push_back({PyLong_AsVoidPtr(where.ptr()), length});
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (list_.back().data == nullptr && length != 0) {
      throw py::value_error("source: address 0 with a length that is not 0");
    }
    return;
  }
  if (py::isinstance<OnDevice>(where)) {
    const auto& there = where.cast<const OnDevice&>();
    std::unique_ptr<client::DeviceReader>& reader = devices_[{there.device, there.stream}];
    if (reader == nullptr) {
      reader = Call([&]() -> StatusOr<std::unique_ptr<client::DeviceReader>> {
        CAIRN_ASSIGN_OR_RETURN(gpu::DeviceSaver* const saver, SaverOf(there.device));
        return saver->After(gpu::StreamId{there.stream});
      });
    }
    list_.push_back({reinterpret_cast<const void*>(there.address), length, -1, 0, reader.get()});
    return;
  }
  if (PyTuple_Check(where.ptr())) {
    const auto [fd, offset] = py::cast<std::pair<int, uint64_t>>(where);
    list_.push_back({nullptr, length, fd, offset});
    return;
  }
  Py_buffer view;
  if (PyObject_GetBuffer(where.ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) {
    throw py::error_already_set();
  }
  views_.push_back(view);
  if (static_cast<uint64_t>(view.len) != length) {
    throw py::value_error("source: its length is not its buffer's");
  }
  list_.push_back({view.buf, length});
}

StatusOr<Region> MakeMemory(uint64_t length) {
  if (length == 0) return Region{};
  CAIRN_ASSIGN_OR_RETURN(client::HugeMemory memory, client::HugeMemory::Make(length));
  madvise(memory.data(), length, MADV_DODUMP);  // the caller's own memory from here on
  auto owner = std::make_shared<client::HugeMemory>(std::move(memory));
  char* const data = owner->data();
  return Region{std::move(owner), data, length};
}

StatusOr<Region> MakeScratch(uint64_t length) {
  if (length == 0) return Region{};
  constexpr uint64_t kLeast = 2 << 20, kMostMappings = 1024;  // a process may have 65,530
  const uint64_t piece =
      std::max(kLeast, (length / kMostMappings + kPageBytes) / kPageBytes * kPageBytes);
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd fd, MakeMemfd("cairn-scratch", piece, 0600));
  // The whole of it at once, so that no other mapping comes between the pieces.
  CAIRN_ASSIGN_OR_RETURN(Mapping whole, Mapping::Map(-1, 0, length, PROT_NONE,
                                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE));
  for (uint64_t at = 0; at < length; at += piece) {
    const uint64_t n = std::min(piece, length - at);
    if (mmap(whole.data() + at, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0) ==
        MAP_FAILED) {
      return ErrnoStatus(errno, absl::StrCat("mmap of ", n, " bytes"));
    }
  }
  auto owner = std::make_shared<Mapping>(std::move(whole));
  char* const data = owner->data();
  return Region{std::move(owner), data, length};
}

py::buffer_info RegionBuffer(Region& region) {
  // A null address is refused by some consumers even for no bytes.
  static char nothing = 0;
  return py::buffer_info(region.data != nullptr ? region.data : &nothing, sizeof(uint8_t),
                         py::format_descriptor<uint8_t>::format(), 1,
                         {static_cast<py::ssize_t>(region.length)}, {py::ssize_t{1}},
                         /*readonly=*/false);
}

py::str NameOf(const ZipEntry& record) {
  return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(
      record.name.data(), static_cast<Py_ssize_t>(record.name.size()), "surrogateescape"));
}

std::vector<std::tuple<py::str, uint64_t, uint64_t>> ZipDirectory(const Region& region) {
  const auto entries =
      Call([&] { return ReadZipDirectory(absl::string_view(region.data, region.length)); });
  std::vector<std::tuple<py::str, uint64_t, uint64_t>> result;
  result.reserve(entries.size());
  for (const ZipEntry& entry : entries) {
    result.emplace_back(NameOf(entry), entry.offset, entry.length);
  }
  return result;
}

}  // namespace cairn::python
