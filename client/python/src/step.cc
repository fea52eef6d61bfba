#include "client/python/src/step.h"

#include <pybind11/stl.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "client/python/src/call.h"
#include "client/python/src/values.h"
#include "common/codec.h"

namespace cairn::python {

using client::StepWriter;
using py::arg;

namespace {

// (where, length) each; how many there are. A save of a large model adds a hundred thousand.
size_t AddSources(const py::handle& sources, Sources* held) {
  const auto list =
      py::reinterpret_steal<py::object>(PySequence_Fast(sources.ptr(), "sources: no sequence"));
  if (!list) throw py::error_already_set();
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.ptr()); ++i) {
    PyObject* const pair = PySequence_Fast_GET_ITEM(list.ptr(), i);
    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
      throw py::type_error("source: wanted is (where, length)");
    }
    const auto where = py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(pair, 0));
    const uint64_t length = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(pair, 1));
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    held->Add(where, length);
  }
  return static_cast<size_t>(PySequence_Fast_GET_SIZE(list.ptr()));
}

const ZipPlan* PlanOf(const py::handle& archive) {
  return archive.is_none() ? nullptr : archive.cast<const ZipPlan*>();
}

}  // namespace

// --- objects that are written together

Objects::Objects(const py::sequence& objects) {
  std::vector<size_t> sources;
  for (const py::handle entry : objects) {
    const auto object = py::cast<py::tuple>(entry);
    archives_.push_back(object[2]);
    items_.push_back({object[0].cast<std::string>(),
                      KindArgument(object[1].cast<std::string>()),
                      {},
                      PlanOf(object[2])});
    sources.push_back(AddSources(object[3], &held_));
  }
  absl::Span<const client::Source> left = held_.span();
  for (size_t i = 0; i < items_.size(); ++i) {
    items_[i].sources.assign(left.begin(), left.begin() + sources[i]);
    left.remove_prefix(sources[i]);
  }
}

PyWriting::PyWriting(std::shared_ptr<StepWriter> writer, std::unique_ptr<Objects> objects)
    : writer_(std::move(writer)), objects_(std::move(objects)) {
  work_ = std::make_unique<client::Background>([this](const std::atomic<bool>& beside) {
    writer_->CopyBeside(&beside);
    Status written = writer_->WriteMany(objects_->items());
    writer_->CopyBeside(nullptr);
    return written;
  });
}

PyWriting::~PyWriting() {
  const py::gil_scoped_release released;
  work_.reset();
  writer_.reset();  // the last one that holds it aborts
}

bool PyWriting::Wait(double timeout_s) {
  return Call([&]() -> StatusOr<bool> {
    if (!work_->Wait(absl::Seconds(timeout_s))) return false;
    CAIRN_RETURN_IF_ERROR(work_->status());
    return true;
  });
}

// --- the step

void PyStep::Drop() {
  if (writer_ == nullptr) return;
  writing_.reset();
  const py::gil_scoped_release released;  // an abort is an RPC
  writer_.reset();
}

StepWriter* PyStep::Get() const {
  if (writer_ == nullptr) Raise(absl::FailedPreconditionError("this step has been dropped"));
  if (writing_ != nullptr && !writing_->ended()) {
    Raise(absl::FailedPreconditionError("this step is still being written in the background"));
  }
  return writer_.get();
}

void PyStep::Write(const std::string& name, const std::string& kind, const py::sequence& sources) {
  const ObjectKind object_kind = KindArgument(kind);
  Sources held;
  AddSources(sources, &held);
  StepWriter* const writer = Get();
  Call([&] { return writer->Write(name, object_kind, held.span()); });
}

void PyStep::WriteZip(const std::string& name, const std::string& kind,
                      const py::sequence& records) {
  const ObjectKind object_kind = KindArgument(kind);
  Sources held;
  std::vector<ZipRecord> layout;
  layout.reserve(records.size());
  for (const py::handle item : records) {
    const auto record = py::cast<py::tuple>(item);
    const auto length = record[2].cast<uint64_t>();
    layout.push_back({record[0].cast<std::string>(), length});
    held.Add(record[1], length);
  }
  StepWriter* const writer = Get();
  Call([&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const ZipPlan plan, ZipPlan::Make(std::move(layout)));
    return writer->WriteZip(name, object_kind, plan, held.span());
  });
}

py::bytes PyStep::WritePieces(const std::string& name, const std::string& kind,
                              const py::list& forms, const py::list& wheres) {
  const ObjectKind object_kind = KindArgument(kind);
  const size_t count = forms.size();
  if (wheres.size() != count) throw py::value_error("wheres: another number than of forms");
  Sources held;
  std::vector<client::Piece> list;
  std::vector<size_t> sources;   // how many each has
  std::vector<py::object> used;  // archives and frames
  list.reserve(count);
  sources.reserve(count);
  const py::handle frame_type = py::type::of<ZipFrame>();
  for (size_t i = 0; i < count; ++i) {
    const auto form =
        py::reinterpret_borrow<py::object>(PyList_GetItem(forms.ptr(), static_cast<Py_ssize_t>(i)));
    const auto where = py::reinterpret_borrow<py::object>(
        PyList_GetItem(wheres.ptr(), static_cast<Py_ssize_t>(i)));
    if (!form || !where) throw py::error_already_set();
    const bool again = !used.empty() && form.is(used.back());
    if (!again) used.push_back(form);
    if (!py::type::handle_of(form).is(frame_type)) {
      list.push_back({PlanOf(form), {}, nullptr});
      sources.push_back(AddSources(where, &held));
      continue;
    }
    const ZipFrame* const frame = again ? list.back().frame : form.cast<const ZipFrame*>();
    list.push_back({nullptr, {}, frame});
    held.Add(where, frame->open_length());
    sources.push_back(1);
  }
  absl::Span<const client::Source> left = held.span();
  for (size_t i = 0; i < count; ++i) {
    list[i].sources = left.subspan(0, sources[i]);
    left.remove_prefix(sources[i]);
  }
  StepWriter* const writer = Get();
  std::string places;
  Call([&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<client::PiecePlace> found,
                           writer->WritePieces(name, object_kind, list));
    places.reserve(found.size() * 2 * sizeof(uint64_t));
    for (const auto& [offset, length] : found) {
      AppendInteger<uint64_t>(&places, offset);
      AppendInteger<uint64_t>(&places, length);
    }
    return absl::OkStatus();
  });
  return places;
}

void PyStep::SetAside(const std::map<std::string, uint64_t>& lengths, double patience_s) {
  StepWriter* const writer = Get();
  StepWriter::Room room;
  for (const auto& [name, length] : lengths) room.Add(length, name.size());
  Call([&] { return writer->SetAside(room, absl::Seconds(patience_s)); });
}

Region PyStep::Reserve(const std::string& name, const std::string& kind, uint64_t length) {
  const ObjectKind object_kind = KindArgument(kind);
  StepWriter* const writer = Get();
  StepWriter::Buffer buffer = Call([&] { return writer->Reserve(name, object_kind, length); });
  return Region{std::move(buffer.owner), buffer.data, buffer.length};
}

void PyStep::Seal(const std::string& name) {
  StepWriter* const writer = Get();
  Call([&] { return writer->Seal(name); });
}

void PyStep::CopyBeside(bool beside) {
  if (beside_ == nullptr) {
    beside_ = std::make_shared<std::atomic<bool>>(false);
    Get()->CopyBeside(beside_.get());
  }
  *beside_ = beside;
}

std::shared_ptr<PyWriting> PyStep::WriteLater(const py::sequence& objects) {
  auto held = std::make_unique<Objects>(objects);
  (void)Get();
  writing_ = std::make_shared<PyWriting>(writer_, std::move(held));
  return writing_;
}

py::tuple PyStep::Commit(const std::map<std::string, std::string>& notes) {
  StepWriter* const writer = Get();
  const client::CommitResult result = Call([&] { return writer->Commit(notes); });
  return py::make_tuple(result.digest, result.complete);
}

void PyStep::Abort() {
  StepWriter* const writer = Get();
  Call([&] { return writer->Abort(); });
}

py::bytes PyStep::HandOver() {
  StepWriter* const writer = Get();
  return py::bytes(Call([&] { return writer->HandOver(); }));
}

Revision PyStep::revision() const {
  if (writer_ == nullptr) Raise(absl::FailedPreconditionError("this step has been dropped"));
  return writer_->revision();
}

// --- how Python names them

namespace {

ZipPlan MakeArchive(const std::vector<std::pair<std::string, uint64_t>>& records) {
  std::vector<ZipRecord> list;
  list.reserve(records.size());
  for (const auto& [name, length] : records) list.push_back({name, length});
  return Call([&] { return ZipPlan::Make(std::move(list)); });
}

// (path in the archive, length, bytes or None) each; without bytes is the open one.
ZipFrame MakeFrame(const std::vector<std::tuple<std::string, uint64_t, py::object>>& records) {
  std::vector<ZipRecord> list;
  std::vector<absl::string_view> contents;
  size_t open = records.size();
  for (const auto& [name, length, content] : records) {
    if (content.is_none() && open < records.size()) {
      throw py::value_error("records: two without bytes");
    }
    if (content.is_none()) open = list.size();
    list.push_back({name, length});
    const auto bytes = content.is_none() ? std::string_view() : content.cast<std::string_view>();
    contents.emplace_back(bytes.data(), bytes.size());
  }
  return Call([&]() -> StatusOr<ZipFrame> {
    CAIRN_ASSIGN_OR_RETURN(const ZipPlan plan, ZipPlan::Make(std::move(list)));
    return ZipFrame::Make(plan, contents, open);
  });
}

}  // namespace

void DefineStep(py::module_& module) {
  py::class_<ZipPlan>(module, "Archive")
      .def(py::init(&MakeArchive), arg("records"))
      .def_property_readonly("minimum_length", &ZipPlan::MinimumLength);
  py::class_<ZipFrame>(module, "Frame")
      .def(py::init(&MakeFrame), arg("records"))
      .def_property_readonly("length", &ZipFrame::length);
  py::class_<PyWriting, std::shared_ptr<PyWriting>>(module, "Writing")
      .def("wait", &PyWriting::Wait, arg("timeout"))
      .def("hurry", &PyWriting::Hurry)
      .def_property_readonly("ended", &PyWriting::ended);
  py::class_<PyStep>(module, "Step")
      .def("write", &PyStep::Write, arg("name"), arg("kind"), arg("sources"))
      .def("write_zip", &PyStep::WriteZip, arg("name"), arg("kind"), arg("records"))
      .def("write_pieces", &PyStep::WritePieces, arg("name"), arg("kind"), arg("forms"),
           arg("wheres"))
      .def("set_aside", &PyStep::SetAside, arg("lengths"), arg("patience"))
      .def("reserve", &PyStep::Reserve, arg("name"), arg("kind"), arg("length"))
      .def("seal", &PyStep::Seal, arg("name"))
      .def("copy_beside", &PyStep::CopyBeside, arg("beside"))
      .def("write_later", &PyStep::WriteLater, arg("objects"))
      .def("commit", &PyStep::Commit, arg("notes"))
      .def("abort", &PyStep::Abort)
      .def("hand_over", &PyStep::HandOver)
      .def("drop", &PyStep::Drop)
      .def_property_readonly("revision", &PyStep::revision)
      .def_property_readonly("bytes_written", &PyStep::bytes_written);
}

}  // namespace cairn::python
