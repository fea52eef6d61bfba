#include "client/python/src/step.h"

#include <pybind11/stl.h>

#include <optional>

#include "client/python/src/call.h"
#include "client/python/src/values.h"

namespace cairn::python {

using client::StepWriter;
using py::arg;

namespace {

// (where, length) each; how many there are.
size_t AddSources(const py::handle& sources, Sources* held) {
  const auto list = py::cast<py::sequence>(sources);
  for (const py::handle source : list) {
    const auto pair = py::cast<py::tuple>(source);
    held->Add(pair[0], pair[1].cast<uint64_t>());
  }
  return list.size();
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

std::vector<std::pair<uint64_t, uint64_t>> PyStep::WritePieces(const std::string& name,
                                                               const std::string& kind,
                                                               const py::sequence& pieces) {
  const ObjectKind object_kind = KindArgument(kind);
  Sources held;
  std::vector<std::pair<const ZipPlan*, size_t>> planned;  // and how many sources
  planned.reserve(pieces.size());
  std::vector<py::object> archives;  // whose plans are used
  for (const py::handle item : pieces) {
    const auto piece = py::cast<py::tuple>(item);
    archives.push_back(piece[0]);
    const ZipPlan* const plan = PlanOf(piece[0]);
    planned.emplace_back(plan, AddSources(piece[1], &held));
  }
  StepWriter* const writer = Get();
  const std::vector<client::PiecePlace> places = Call([&] {
    std::vector<client::Piece> list;
    list.reserve(planned.size());
    absl::Span<const client::Source> left = held.span();
    for (const auto& [plan, sources] : planned) {
      list.push_back({plan, left.subspan(0, sources)});
      left.remove_prefix(sources);
    }
    return writer->WritePieces(name, object_kind, list);
  });
  std::vector<std::pair<uint64_t, uint64_t>> found;
  found.reserve(places.size());
  for (const auto& [offset, length] : places) found.emplace_back(offset, length);
  return found;
}

void PyStep::SetAside(size_t objects, uint64_t bytes, uint64_t name_bytes, double patience_s) {
  StepWriter* const writer = Get();
  const StepWriter::Room room{.objects = objects, .bytes = bytes, .name_bytes = name_bytes};
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

}  // namespace

void DefineStep(py::module_& module) {
  py::class_<ZipPlan>(module, "Archive")
      .def(py::init(&MakeArchive), arg("records"))
      .def_property_readonly("minimum_length", &ZipPlan::MinimumLength);
  py::class_<PyWriting, std::shared_ptr<PyWriting>>(module, "Writing")
      .def("wait", &PyWriting::Wait, arg("timeout"))
      .def("hurry", &PyWriting::Hurry)
      .def_property_readonly("ended", &PyWriting::ended);
  py::class_<PyStep>(module, "Step")
      .def("write", &PyStep::Write, arg("name"), arg("kind"), arg("sources"))
      .def("write_zip", &PyStep::WriteZip, arg("name"), arg("kind"), arg("records"))
      .def("write_pieces", &PyStep::WritePieces, arg("name"), arg("kind"), arg("pieces"))
      .def("set_aside", &PyStep::SetAside, arg("objects"), arg("bytes"), arg("name_bytes"),
           arg("patience"))
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
