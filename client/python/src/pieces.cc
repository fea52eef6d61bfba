#include "client/python/src/pieces.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cpp/block_reader.h"
#include "client/python/src/call.h"
#include "common/status.h"

namespace cairn::python {
namespace {

using client::ObjectRange;
using client::OpenObject;
using client::StridedPiece;

// Of each end of an archive. Of a tensor's, torch's records have some 800 bytes before the elements and 600 after them.
constexpr uint64_t kEndBytes = 2048;

// --- Python's numbers, ten thousand pieces of which are read in a few ms

uint64_t Unsigned(PyObject* value) {
  const uint64_t number = PyLong_AsUnsignedLongLong(value);
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return number;
}

// Appends the numbers of a tuple; returns how many.
size_t AppendNumbers(PyObject* tuple, std::vector<int64_t>* numbers) {
  if (!PyTuple_Check(tuple)) throw py::type_error("piece: a shape or strides that are no tuple");
  const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
  for (Py_ssize_t i = 0; i < count; ++i) {
    numbers->push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
    if (numbers->back() == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  }
  return static_cast<size_t>(count);
}

void* Address(PyObject* where) {
  if (PyLong_Check(where)) {
    void* const address = PyLong_AsVoidPtr(where);
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return address;
  }
  return py::handle(where).cast<const Region&>().data;
}

// Pieces, and the numbers that they point to.
class Pieces {
 public:
  void Add(PyObject* piece) {
    if (!PyTuple_Check(piece) || PyTuple_GET_SIZE(piece) != 6) {
      throw py::type_error(
          "piece: wanted is (offset, item bytes, shape, strides, where, strides there)");
    }
    const auto item = [&](Py_ssize_t i) { return PyTuple_GET_ITEM(piece, i); };
    StridedPiece& made = pieces_.emplace_back();
    made.offset = Unsigned(item(0));
    made.item_bytes = Unsigned(item(1));
    made.into = Address(item(4));
    counts_.push_back({AppendNumbers(item(2), &numbers_), AppendNumbers(item(3), &numbers_),
                       AppendNumbers(item(5), &numbers_)});
  }

  void AddAll(const py::sequence& pieces) {
    const auto list = py::reinterpret_steal<py::object>(PySequence_Fast(pieces.ptr(), "pieces"));
    if (!list) throw py::error_already_set();
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.ptr()); ++i) {
      Add(PySequence_Fast_GET_ITEM(list.ptr(), i));
    }
  }

  // The ranges one after the other.
  void Add(absl::Span<const ObjectRange> ranges, char* into) {
    for (const ObjectRange& range : ranges) {
      pieces_.push_back({range.offset, range.length, {}, {}, into, {}});
      counts_.push_back({0, 0, 0});
      into += range.length;
    }
  }

  // Once all are added.
  absl::Span<const StridedPiece> span() {
    absl::Span<const int64_t> left = numbers_;
    const auto take = [&](size_t count) {
      const absl::Span<const int64_t> taken = left.subspan(0, count);
      left.remove_prefix(count);
      return taken;
    };
    for (size_t i = 0; i < pieces_.size(); ++i) {
      pieces_[i].shape = take(counts_[i][0]);
      pieces_[i].from_strides = take(counts_[i][1]);
      pieces_[i].into_strides = take(counts_[i][2]);
    }
    return pieces_;
  }

 private:
  std::vector<StridedPiece> pieces_;
  std::vector<std::array<size_t, 3>> counts_;
  std::vector<int64_t> numbers_;
};

}  // namespace

// --- the ends of archives

ArchiveEnds ArchiveEnds::Peek(OpenObject& object, const py::sequence& places) {
  std::vector<ObjectRange> archives;
  archives.reserve(places.size());
  for (const py::handle place : places) {
    const auto [offset, length] = py::cast<std::pair<uint64_t, uint64_t>>(place);
    archives.push_back({offset, length});
  }
  ArchiveEnds made;
  made.archives_.resize(archives.size());
  Call([&]() -> Status {
    std::array<char, 2 * kEndBytes> room;
    for (size_t i = 0; i < archives.size(); ++i) {
      const auto [offset, length] = archives[i];
      const uint64_t head = std::min(length, kEndBytes);
      const uint64_t tail = std::min(length - head, kEndBytes);
      const ObjectRange ends[] = {{offset, head}, {offset + length - tail, tail}};
      if (!object.PeekRanges(ends, room.data()).ok())
        return absl::OkStatus();  // the verified read says what is wrong
      const ZipEnds found = {{room.data(), head}, {room.data() + head, tail}, length};
      StatusOr<std::vector<ZipEntry>> records = ReadZipDirectory(found);
      if (!records.ok()) continue;
      made.archives_[i].records = *std::move(records);
      made.Keep(offset, found, &made.archives_[i]);
    }
    return absl::OkStatus();
  });
  return made;
}

void ArchiveEnds::Keep(uint64_t place, const ZipEnds& ends, Archive* archive) {
  // Not the elements: of the head what is before the record that goes on after it, of the tail what is behind.
  uint64_t head = ends.head.size(), tail = ends.length - ends.tail.size();
  for (const ZipEntry& record : archive->records) {
    if (record.offset + record.length <= ends.head.size()) continue;
    head = std::min(head, record.offset);
    if (record.offset <= ends.head.size()) tail = std::max(tail, record.offset + record.length);
  }
  archive->head = bytes_.size();
  archive->head_length = head;
  absl::StrAppend(&bytes_, ends.head.substr(0, head));
  ranges_.push_back({place, head});
  if (tail < ends.length) {
    absl::StrAppend(&bytes_, ends.tail.substr(tail - (ends.length - ends.tail.size())));
    ranges_.push_back({place + tail, ends.length - tail});
  }
}

py::object ArchiveEnds::At(size_t index) const {
  if (index >= archives_.size()) throw py::index_error("archive");
  const Archive& archive = archives_[index];
  if (archive.records.empty()) return py::none();
  py::list records(archive.records.size());
  for (size_t i = 0; i < archive.records.size(); ++i) {
    const ZipEntry& record = archive.records[i];
    records[i] = py::make_tuple(NameOf(record), record.offset, record.length);
  }
  return py::make_tuple(records, py::bytes(bytes_.data() + archive.head, archive.head_length));
}

// --- pieces

bool ReadPieces(OpenObject& object, const py::sequence& pieces, const ArchiveEnds* peeked) {
  Pieces wanted;
  wanted.AddAll(pieces);
  std::string again;
  Call([&] {
    if (peeked != nullptr) {
      again.resize(peeked->bytes().size());
      wanted.Add(peeked->ranges(), again.data());
    }
    return object.ReadPieces(wanted.span());
  });
  return peeked == nullptr || again == peeked->bytes();
}

// --- pieces of blocks that somebody else reads

BlockPieces BlockPieces::Make(OpenObject& object, const py::sequence& pieces,
                              const ArchiveEnds* peeked) {
  Pieces wanted;
  wanted.AddAll(pieces);
  auto again = std::make_unique<std::string>();
  if (peeked != nullptr) {
    again->resize(peeked->bytes().size());
    wanted.Add(peeked->ranges(), again->data());
  }
  client::StridedPieces made =
      Call([&] { return client::StridedPieces::Make(wanted.span(), object.info().length); });
  return {absl::StrCat(object.checkpoint().DebugString(), " object ", object.info().name),
          object.info().length,
          object.info().block_crcs,
          std::move(made),
          peeked != nullptr ? peeked->bytes() : std::string(),
          std::move(again)};
}

std::vector<std::pair<uint64_t, uint64_t>> BlockPieces::Runs() const {
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  for (const uint64_t block : pieces_.blocks()) {
    if (runs.empty() || runs.back().first + runs.back().second != block)
      runs.emplace_back(block, 0);
    ++runs.back().second;
  }
  return runs;
}

void BlockPieces::Put(uint64_t first, const Region& bytes) const {
  Call([&] {
    return client::PutBlocks({what_, length_, &crcs_}, pieces_, first, bytes.data, bytes.length);
  });
}

}  // namespace cairn::python
