// cairn._native: libcairn as Python sees it. Everything a person meets (paths, warnings, formats)
// is in the .py files beside the module; here are only the classes and their methods. call.h says
// how errors and the GIL are treated, memory.h which bytes stay alive, values.h what answers and
// arguments become.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/session.h"
#include "client/python/src/call.h"
#include "client/python/src/memory.h"
#include "client/python/src/pieces.h"
#include "client/python/src/planning.h"
#include "client/python/src/values.h"
#include "client/python/src/weights.h"
#include "common/keys.h"
#include "common/status.h"
#include "common/version.h"
#include "common/zip.h"

namespace cairn::python {
namespace {

using client::ConnectOptions;
using client::OpenObject;
using client::Session;
using client::StepWriter;

// One writer's part of one step. Destroying it uncommitted aborts it, in libcairn.
class PyStep {
 public:
  explicit PyStep(std::unique_ptr<StepWriter> writer) : writer_(std::move(writer)) {}
  PyStep(PyStep&&) = default;
  PyStep& operator=(PyStep&&) = default;
  ~PyStep() { Drop(); }

  // Ends it without a word about how: a daemon that does not answer is not waited for twice.
  void Drop() {
    if (writer_ == nullptr) return;
    const py::gil_scoped_release released;  // an abort is an RPC
    writer_.reset();
  }

  void Write(const std::string& name, const std::string& kind, const py::sequence& sources) {
    const ObjectKind object_kind = KindArgument(kind);
    Sources held;
    for (const py::handle pair : sources) {
      const auto source = py::cast<py::tuple>(pair);
      held.Add(source[0], source[1].cast<uint64_t>());
    }
    StepWriter* const writer = get();
    Call([&] { return writer->Write(name, object_kind, held.span()); });
  }

  // records: (path in the archive, where, length) each.
  void WriteZip(const std::string& name, const std::string& kind, const py::sequence& records) {
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
    StepWriter* const writer = get();
    Call([&]() -> Status {
      CAIRN_ASSIGN_OR_RETURN(const ZipPlan plan, ZipPlan::Make(std::move(layout)));
      return writer->WriteZip(name, object_kind, plan, held.span());
    });
  }

  // pieces: (archive or None, its records' or its own (where, length)) each. Returns their (offset, length).
  std::vector<std::pair<uint64_t, uint64_t>> WritePieces(const std::string& name,
                                                         const std::string& kind,
                                                         const py::sequence& pieces) {
    const ObjectKind object_kind = KindArgument(kind);
    Sources held;
    std::vector<std::pair<const ZipPlan*, size_t>> planned;  // and how many sources
    planned.reserve(pieces.size());
    std::vector<py::object> archives;  // whose plans are used
    for (const py::handle item : pieces) {
      const auto piece = py::cast<py::tuple>(item);
      const auto sources = py::cast<py::sequence>(piece[1]);
      archives.push_back(piece[0]);
      planned.emplace_back(piece[0].is_none() ? nullptr : piece[0].cast<const ZipPlan*>(),
                           sources.size());
      for (const py::handle source : sources) {
        const auto pair = py::cast<py::tuple>(source);
        held.Add(pair[0], pair[1].cast<uint64_t>());
      }
    }
    StepWriter* const writer = get();
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

  py::tuple Commit(const std::map<std::string, std::string>& notes) {
    StepWriter* const writer = get();
    const client::CommitResult result = Call([&] { return writer->Commit(notes); });
    return py::make_tuple(result.digest, result.complete);
  }
  void Abort() {
    StepWriter* const writer = get();
    Call([&] { return writer->Abort(); });
  }
  Revision revision() const { return get()->revision(); }
  uint64_t bytes_written() const { return writer_ == nullptr ? 0 : writer_->bytes_written(); }

 private:
  StepWriter* get() const {
    if (writer_ == nullptr) Raise(absl::FailedPreconditionError("this step has been dropped"));
    return writer_.get();
  }

  std::unique_ptr<StepWriter> writer_;
};

class PyObjectHandle {
 public:
  explicit PyObjectHandle(std::unique_ptr<OpenObject> object) : object_(std::move(object)) {}
  PyObjectHandle(PyObjectHandle&&) = default;
  PyObjectHandle& operator=(PyObjectHandle&&) = default;
  ~PyObjectHandle() { Close(); }

  void Close() {
    if (object_ == nullptr) return;
    const py::gil_scoped_release released;  // the end of a lease may be an RPC
    object_.reset();
  }
  OpenObject& get() const {
    if (object_ == nullptr) Raise(absl::FailedPreconditionError("this object has been closed"));
    return *object_;
  }

  py::dict Info() const {
    py::dict d = AsDict(get().info());
    const CheckpointKey& key = get().checkpoint();
    d["job"] = key.job;
    d["step"] = key.step;
    d["attempt"] = key.attempt;
    d["revision"] = key.revision;
    d["from_storage"] = get().from_storage();
    return d;
  }
  // Fresh private memory with the object in it, verified.
  Region Read() const {
    OpenObject& object = get();
    return Call([&]() -> StatusOr<Region> {
      CAIRN_ASSIGN_OR_RETURN(Region region, MakeMemory(object.info().length));
      if (region.length > 0) CAIRN_RETURN_IF_ERROR(object.ReadInto(region.data));
      return region;
    });
  }
  // The same as a bytes object, with no second copy.
  py::bytes ReadBytes() const {
    OpenObject& object = get();
    const uint64_t length = object.info().length;
    auto bytes = py::reinterpret_steal<py::bytes>(
        PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(length)));
    if (!bytes) throw py::error_already_set();
    char* const data = PyBytes_AS_STRING(bytes.ptr());
    if (length > 0) Call([&] { return object.ReadInto(data); });
    return bytes;
  }
  Region Map() const {
    OpenObject& object = get();
    if (object.info().length == 0) return Region{};
    OpenObject::View view = Call([&] { return object.Map(); });
    return Region{std::move(view.owner), view.data, view.length};
  }
  std::string Path() const {
    OpenObject& object = get();
    return Call([&] { return object.Path(); });
  }
  void Verify() const {
    OpenObject& object = get();
    Call([&] { return object.Verify(); });
  }
  ArchiveEnds PeekArchives(const py::sequence& places) const {
    return ArchiveEnds::Peek(get(), places);
  }
  bool ReadPieces(const py::sequence& pieces, const ArchiveEnds* peeked) const {
    return cairn::python::ReadPieces(get(), pieces, peeked);
  }

 private:
  std::unique_ptr<OpenObject> object_;
};

class PySession {
 public:
  PySession(const std::string& socket, const std::string& job, Attempt attempt, Writer writer,
            int32_t world_size, int32_t local_writers, bool takes_fds, int copy_threads,
            double timeout_s, const std::string& client, const std::optional<py::dict>& policy,
            bool fence, const std::string& run, int32_t restart) {
    ConnectOptions options;
    if (!socket.empty()) options.socket = socket;
    options.job = job;
    options.attempt = attempt;
    options.writer = writer;
    options.world_size = world_size;
    options.local_writers = local_writers;
    options.takes_fds = takes_fds;
    options.copy_threads = copy_threads;
    options.timeout = absl::Seconds(timeout_s);
    options.client = client;
    if (policy.has_value()) options.policy = PolicyArgument(*policy);
    options.fence = fence;
    options.run = run;
    options.restart = restart;
    session_ = Call([&] { return Session::Connect(options); });
  }
  PySession(PySession&&) = default;
  PySession& operator=(PySession&&) = default;
  ~PySession() {
    if (session_ == nullptr) return;
    const py::gil_scoped_release released;  // goodbye is an RPC
    session_.reset();
  }

  void Close() {
    const py::gil_scoped_release released;
    session_->Close();
  }
  uint64_t id() const { return session_->id(); }
  std::string storage_root() const { return session_->storage_root(); }
  std::string socket() const { return session_->options().socket; }

  Attempt ProposeAttempt() {
    return Call([&] { return session_->ProposeAttempt(); });
  }
  Attempt ChooseAttempt() {
    return Call([&] { return session_->ChooseAttempt(); });
  }
  void SetAttempt(Attempt attempt) {
    Call([&] { return session_->SetAttempt(attempt); });
  }
  PyStep BeginStep(Step step, std::optional<int32_t> writers, double timeout_s) {
    return PyStep(
        Call([&] { return session_->BeginStep(step, writers, absl::Seconds(timeout_s)); }));
  }
  PyObjectHandle Open(const std::string& job, Step step, const std::string& name,
                      const std::string& mode, double timeout_s, Attempt attempt,
                      Revision revision) {
    const OpenMode open_mode = OpenModeArgument(mode);
    return PyObjectHandle(Call([&] {
      return session_->Open(CheckpointRef{job, step, attempt, revision}, name, open_mode,
                            absl::Seconds(timeout_s));
    }));
  }
  PyWeights OpenWeights(const std::string& job, Step step, Attempt attempt, Revision revision,
                        double timeout_s) {
    return PyWeights(session_, Call([&] {
                       return client::Weights::Open(session_.get(),
                                                    CheckpointRef{job, step, attempt, revision},
                                                    absl::Seconds(timeout_s));
                     }));
  }
  py::dict Latest(const std::string& job) {
    return AsDict(Call([&] { return session_->Latest(job); }));
  }
  py::dict Resume(Step step) {
    return AsDict(Call([&] { return session_->Resume(step); }));
  }
  py::dict Use(const std::string& job, Step step, Attempt attempt, bool fence) {
    return AsDict(Call([&] { return session_->Use(CheckpointRef{job, step, attempt}, fence); }));
  }
  py::dict Stat(const std::string& job, Step step, Attempt attempt, Revision revision) {
    return AsDict(Call([&] {
      return session_->Stat(CheckpointRef{job, step, attempt, revision});
    }));
  }
  py::dict StatObject(const std::string& job, Step step, Attempt attempt, Revision revision,
                      const std::string& name) {
    return AsDict(Call([&] {
      return session_->StatObject(CheckpointRef{job, step, attempt, revision}, name);
    }));
  }
  py::dict List(const std::string& path) {
    const client::Listing listing = Call([&] { return session_->List(path); });
    py::list checkpoints;
    for (const CheckpointInfo& info : listing.checkpoints) checkpoints.append(AsDict(info));
    py::list objects;
    for (const ObjectInfo& info : listing.objects) objects.append(AsDict(info));
    py::dict d;
    d["jobs"] = listing.jobs;
    d["checkpoints"] = checkpoints;
    d["objects"] = objects;
    return d;
  }
  py::dict Wait(const std::string& job, Step step, const std::string& level, double timeout_s,
                Attempt attempt, Revision revision) {
    const Level wanted = LevelArgument(level);
    return AsDict(Call([&] {
      return session_->Wait(CheckpointRef{job, step, attempt, revision}, wanted,
                            absl::Seconds(timeout_s));
    }));
  }
  py::dict WaitAfter(Step step, double timeout_s, Attempt head, Revision revision) {
    return AsDict(
        Call([&] { return session_->WaitAfter(step, absl::Seconds(timeout_s), head, revision); }));
  }
  void Persist(const std::string& job, Step step) {
    Call([&] { return session_->Persist(CheckpointRef{job, step}); });
  }
  void Remove(const std::string& job, Step step, bool memory_only, bool force) {
    Call([&] { return session_->Remove(CheckpointRef{job, step}, memory_only, force); });
  }
  void Pin(const std::string& job, Step step, bool pinned) {
    Call([&] { return session_->Pin(CheckpointRef{job, step}, pinned); });
  }
  void SetPolicy(const py::dict& policy) {
    const JobPolicy wanted = PolicyArgument(policy);
    Call([&] { return session_->SetPolicy(wanted); });
  }
  std::string StatusJson() {
    return Call([&] { return session_->StatusJson(); });
  }

 private:
  std::shared_ptr<Session> session_;
};

// (job, step, name), step -1 for latest.
py::tuple ParsePath(const std::string& path, const std::string& default_job) {
  const CairnPath parsed = Call([&] { return ParseCairnPath(path, default_job); });
  return py::make_tuple(parsed.job, parsed.latest ? kNoStep : parsed.step, parsed.name);
}

// --- how Python names them

using py::arg;

// A part of it, which keeps all of it alive.
Region SliceOf(const Region& region, uint64_t offset, uint64_t length) {
  if (offset > region.length || length > region.length - offset) {
    Raise(absl::InvalidArgumentError(absl::StrCat("offset, length: ", length, " bytes from ",
                                                  offset, " on, of ", region.length)));
  }
  return Region{region.owner, region.data + offset, length};
}

void DefineRegion(py::module_& module) {
  py::class_<Region>(module, "Region", py::buffer_protocol())
      .def(py::init([](uint64_t length) { return Call([&] { return MakeMemory(length); }); }),
           arg("length"))
      .def_buffer(&RegionBuffer)
      .def("__len__", [](const Region& region) { return region.length; })
      .def("slice", &SliceOf, arg("offset"), arg("length"));
  py::class_<OnDevice>(module, "OnDevice")
      .def(py::init<int, uint64_t, uintptr_t>(), arg("device"), arg("address"), arg("stream"));
}

ZipPlan MakeArchive(const std::vector<std::pair<std::string, uint64_t>>& records) {
  std::vector<ZipRecord> list;
  list.reserve(records.size());
  for (const auto& [name, length] : records) list.push_back({name, length});
  return Call([&] { return ZipPlan::Make(std::move(list)); });
}

void DefineStep(py::module_& module) {
  py::class_<ZipPlan>(module, "Archive")
      .def(py::init(&MakeArchive), arg("records"))
      .def_property_readonly("minimum_length", &ZipPlan::MinimumLength);
  py::class_<PyStep>(module, "Step")
      .def("write", &PyStep::Write, arg("name"), arg("kind"), arg("sources"))
      .def("write_zip", &PyStep::WriteZip, arg("name"), arg("kind"), arg("records"))
      .def("write_pieces", &PyStep::WritePieces, arg("name"), arg("kind"), arg("pieces"))
      .def("commit", &PyStep::Commit, arg("notes"))
      .def("abort", &PyStep::Abort)
      .def("drop", &PyStep::Drop)
      .def_property_readonly("revision", &PyStep::revision)
      .def_property_readonly("bytes_written", &PyStep::bytes_written);
}

void DefineOpenObject(py::module_& module) {
  py::class_<ArchiveEnds>(module, "ArchiveEnds")
      .def("__len__", &ArchiveEnds::size)
      .def("at", &ArchiveEnds::At, arg("index"));
  py::class_<PyObjectHandle>(module, "OpenObject")
      .def("info", &PyObjectHandle::Info)
      .def("read", &PyObjectHandle::Read)
      .def("read_bytes", &PyObjectHandle::ReadBytes)
      .def("map", &PyObjectHandle::Map)
      .def("path", &PyObjectHandle::Path)
      .def("verify", &PyObjectHandle::Verify)
      .def("peek_archives", &PyObjectHandle::PeekArchives, arg("places"))
      .def("read_pieces", &PyObjectHandle::ReadPieces, arg("pieces"), arg("peeked") = nullptr)
      .def("close", &PyObjectHandle::Close);
}

void DefineSession(py::module_& module) {
  py::class_<PySession>(module, "Session")
      .def(py::init<const std::string&, const std::string&, Attempt, Writer, int32_t, int32_t, bool,
                    int, double, const std::string&, const std::optional<py::dict>&, bool,
                    const std::string&, int32_t>(),
           py::kw_only(), arg("socket"), arg("job"), arg("attempt"), arg("writer"),
           arg("world_size"), arg("local_writers"), arg("takes_fds"), arg("copy_threads"),
           arg("timeout"), arg("client"), arg("policy"), arg("fence") = false, arg("run") = "",
           arg("restart") = -1)
      .def("close", &PySession::Close)
      .def_property_readonly("id", &PySession::id)
      .def_property_readonly("socket", &PySession::socket)
      .def_property_readonly("storage_root", &PySession::storage_root)
      .def("propose_attempt", &PySession::ProposeAttempt)
      .def("choose_attempt", &PySession::ChooseAttempt)
      .def("set_attempt", &PySession::SetAttempt, arg("attempt"))
      .def("begin_step", &PySession::BeginStep, arg("step"), arg("writers"), arg("timeout"))
      .def("open", &PySession::Open, arg("job"), arg("step"), arg("name"), arg("mode"),
           arg("timeout"), arg("attempt") = 0, arg("revision") = -1)
      .def("open_weights", &PySession::OpenWeights, arg("job"), arg("step"), arg("attempt"),
           arg("revision"), arg("timeout"))
      .def("latest", &PySession::Latest, arg("job"))
      .def("resume", &PySession::Resume, arg("step"))
      .def("use", &PySession::Use, arg("job"), arg("step"), arg("attempt"), arg("fence"))
      .def("stat", &PySession::Stat, arg("job"), arg("step"), arg("attempt"), arg("revision"))
      .def("stat_object", &PySession::StatObject, arg("job"), arg("step"), arg("attempt"),
           arg("revision"), arg("name"))
      .def("list", &PySession::List, arg("path"))
      .def("wait", &PySession::Wait, arg("job"), arg("step"), arg("level"), arg("timeout"),
           arg("attempt") = 0, arg("revision") = -1)
      .def("wait_after", &PySession::WaitAfter, arg("step"), arg("timeout"), arg("head") = 0,
           arg("revision") = -1)
      .def("persist", &PySession::Persist, arg("job"), arg("step"))
      .def("remove", &PySession::Remove, arg("job"), arg("step"), arg("memory_only"), arg("force"))
      .def("pin", &PySession::Pin, arg("job"), arg("step"), arg("pinned"))
      .def("set_policy", &PySession::SetPolicy, arg("policy"))
      .def("status_json", &PySession::StatusJson);
}

void DefineFunctions(py::module_& module) {
  module.def("zip_directory", &ZipDirectory, arg("region"));
  module.def("parse_path", &ParsePath, arg("path"), arg("default_job"));
  module.def("validate_job",
             [](const std::string& job) { Call([&] { return ValidateJob(job); }); });
  module.def("validate_name",
             [](const std::string& name) { Call([&] { return ValidateObjectName(name); }); });
}

void DefineConstants(py::module_& module) {
  module.attr("NO_STEP") = kNoStep;
  module.attr("BLOCK_BYTES") = kBlockBytes;
  module.attr("VERSION") = std::string(Version());
  const ConnectOptions defaults;
  module.attr("DEFAULT_TIMEOUT_S") = absl::ToDoubleSeconds(defaults.timeout);
  module.attr("DEFAULT_COPY_THREADS") = defaults.copy_threads;
  module.attr("DEFAULT_LOCAL_WRITERS") = defaults.local_writers;
}

}  // namespace
}  // namespace cairn::python

PYBIND11_MODULE(_native, module) {
  module.doc() = "libcairn; use the package `cairn`, not this.";
  cairn::python::DefineConstants(module);
  cairn::python::DefineRegion(module);
  cairn::python::DefineStep(module);
  cairn::python::DefineOpenObject(module);
  cairn::python::DefineWeights(module);
  cairn::python::DefineSession(module);
  cairn::python::DefineFunctions(module);
  cairn::python::DefinePlanning(module);
}
