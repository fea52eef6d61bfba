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

#include "client/cpp/process.h"
#include "client/cpp/session.h"
#include "client/python/src/call.h"
#include "client/python/src/memory.h"
#include "client/python/src/pieces.h"
#include "client/python/src/planning.h"
#include "client/python/src/step.h"
#include "client/python/src/values.h"
#include "client/python/src/weights.h"
#include "common/keys.h"
#include "common/status.h"
#include "common/version.h"

namespace cairn::python {
namespace {

using client::ConnectOptions;
using client::OpenObject;
using client::Session;

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
    d["in_memory"] = !get().memory().empty();
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
  BlockPieces PiecesOfBlocks(const py::sequence& pieces, const ArchiveEnds* peeked) const {
    return BlockPieces::Make(get(), pieces, peeked);
  }

 private:
  std::unique_ptr<OpenObject> object_;
};

class PySession {
 public:
  PySession(const std::string& socket, const std::string& job, Attempt attempt, Writer writer,
            int32_t world_size, int32_t local_writers, bool takes_fds, int copy_threads,
            double timeout_s, const std::string& client, const std::optional<py::dict>& policy,
            bool fence, const std::string& run, int32_t restart, const py::bytes& process) {
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
    options.process = process;
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
  // `among`: how many ranks save the step, and which of them this is.
  // `stored`: of a part that goes straight into storage.
  PyStep BeginStep(Step step, std::optional<std::pair<int32_t, Writer>> among, double timeout_s,
                   bool stored) {
    std::optional<client::Among> of_some;
    if (among.has_value()) of_some = client::Among{among->first, among->second};
    const absl::Duration timeout = absl::Seconds(timeout_s);
    return PyStep(Call([&] {
      return stored ? session_->BeginStored(step, of_some, timeout)
                    : session_->BeginStep(step, of_some, timeout);
    }));
  }
  PyStep TakeOver(const std::string& handed_over, double timeout_s) {
    return PyStep(Call([&] { return session_->TakeOver(handed_over, absl::Seconds(timeout_s)); }));
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
      .def_static(
          "scratch", [](uint64_t length) { return Call([&] { return MakeScratch(length); }); },
          arg("length"))
      .def_buffer(&RegionBuffer)
      .def("__len__", [](const Region& region) { return region.length; })
      .def("slice", &SliceOf, arg("offset"), arg("length"));
  py::class_<OnDevice>(module, "OnDevice")
      .def(py::init<int, uint64_t, uintptr_t>(), arg("device"), arg("address"), arg("stream"));
}

void DefineOpenObject(py::module_& module) {
  py::class_<ArchiveEnds>(module, "ArchiveEnds")
      .def("__len__", &ArchiveEnds::size)
      .def("at", &ArchiveEnds::At, arg("index"));
  py::class_<BlockPieces>(module, "BlockPieces")
      .def("runs", &BlockPieces::Runs)
      .def("put", &BlockPieces::Put, arg("first"), arg("bytes"))
      .def("peeked_holds", &BlockPieces::PeekedHolds);
  py::class_<PyObjectHandle>(module, "OpenObject")
      .def("info", &PyObjectHandle::Info)
      .def("read", &PyObjectHandle::Read)
      .def("read_bytes", &PyObjectHandle::ReadBytes)
      .def("map", &PyObjectHandle::Map)
      .def("path", &PyObjectHandle::Path)
      .def("verify", &PyObjectHandle::Verify)
      .def("peek_archives", &PyObjectHandle::PeekArchives, arg("places"))
      .def("read_pieces", &PyObjectHandle::ReadPieces, arg("pieces"), arg("peeked") = nullptr)
      .def("pieces_of_blocks", &PyObjectHandle::PiecesOfBlocks, arg("pieces"),
           arg("peeked") = nullptr)
      .def("close", &PyObjectHandle::Close);
}

void DefineSession(py::module_& module) {
  py::class_<PySession>(module, "Session")
      .def(py::init<const std::string&, const std::string&, Attempt, Writer, int32_t, int32_t, bool,
                    int, double, const std::string&, const std::optional<py::dict>&, bool,
                    const std::string&, int32_t, const py::bytes&>(),
           py::kw_only(), arg("socket"), arg("job"), arg("attempt"), arg("writer"),
           arg("world_size"), arg("local_writers"), arg("takes_fds"), arg("copy_threads"),
           arg("timeout"), arg("client"), arg("policy"), arg("fence") = false, arg("run") = "",
           arg("restart") = -1, arg("process") = py::bytes())
      .def("close", &PySession::Close)
      .def_property_readonly("id", &PySession::id)
      .def_property_readonly("socket", &PySession::socket)
      .def_property_readonly("storage_root", &PySession::storage_root)
      .def("propose_attempt", &PySession::ProposeAttempt)
      .def("choose_attempt", &PySession::ChooseAttempt)
      .def("set_attempt", &PySession::SetAttempt, arg("attempt"))
      .def("begin_step", &PySession::BeginStep, arg("step"), arg("among"), arg("timeout"),
           arg("stored") = false)
      .def("take_over", &PySession::TakeOver, arg("handed_over"), arg("timeout"))
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
  module.def("this_process", [] { return py::bytes(Call([] { return client::ThisProcess(); })); });
  module.def("steps_entered", &client::StepsEntered, arg("job"), arg("attempt"), arg("writer"),
             arg("most"));
  module.def("note_entered", &client::NoteEntered, arg("job"), arg("attempt"), arg("writer"),
             arg("entered"));
  module.def("validate_job",
             [](const std::string& job) { Call([&] { return ValidateJob(job); }); });
  module.def("validate_name",
             [](const std::string& name) { Call([&] { return ValidateObjectName(name); }); });
}

void DefineConstants(py::module_& module) {
  module.attr("NO_STEP") = kNoStep;
  module.attr("BLOCK_BYTES") = kBlockBytes;
  module.attr("MAX_OBJECT_BYTES") = kMaxObjectBytes;
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
