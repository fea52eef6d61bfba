// cairn._native: libcairn as Python sees it. Everything a person meets (paths, warnings, formats)
// is in the .py files beside the module; here are only types, the GIL and errors.
//
// Rules: the GIL is released around every call into libcairn, which may block until its deadline;
// bytes that such a call reads are held by Py_buffer or kept alive by the Python caller; a Status
// that is not OK leaves as the exception cairn.errors.from_status makes of it. Regions (memory that
// Python reads and writes) own what they show, so a tensor over one keeps the mapping, and with it
// the lease, alive.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/mman.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/session.h"
#include "common/fd.h"
#include "common/keys.h"
#include "common/manifest.h"
#include "common/status.h"
#include "common/zip.h"

namespace py = pybind11;

namespace cairn::python {
namespace {

using client::CheckpointFacts;
using client::CheckpointInfo;
using client::CheckpointRef;
using client::ConnectOptions;
using client::LatestCheckpoint;
using client::ObjectInfo;
using client::OpenObject;
using client::Session;
using client::Source;
using client::StepWriter;

// --- errors

// Needs the GIL.
[[noreturn]] void Raise(const Status& status) {
  const std::string message(status.message());
  // Python strings are UTF-8; a message may quote a name that is not.
  const py::object text = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace"));
  const py::object error = py::module_::import("cairn.errors")
                               .attr("from_status")(static_cast<int>(status.code()), text);
  PyErr_SetObject(py::type::of(error).ptr(), error.ptr());
  throw py::error_already_set();
}

// Calls `work` (which returns Status or StatusOr) without the GIL, then raises or returns the
// value.
template <typename Work>
auto Call(Work&& work) {
  auto result = [&] {
    const py::gil_scoped_release released;
    return work();
  }();
  if constexpr (std::is_same_v<decltype(result), Status>) {
    if (!result.ok()) Raise(result);
  } else {
    if (!result.ok()) Raise(result.status());
    return *std::move(result);
  }
}

absl::Duration Seconds(double seconds) { return absl::Seconds(seconds); }

// --- bytes that a save reads

// One source is a pair (where, length): `where` an address as int, which the caller keeps alive
// until the call returns, or an object with contiguous bytes, which is held here.
class Sources {
 public:
  Sources() = default;
  Sources(const Sources&) = delete;
  Sources& operator=(const Sources&) = delete;
  ~Sources() {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
  }

  void Add(const py::handle& where, uint64_t length) {
    if (PyLong_Check(where.ptr())) {
      list_.push_back({PyLong_AsVoidPtr(where.ptr()), length});
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
      if (list_.back().data == nullptr && length != 0) {
        throw py::value_error("source: address 0 with a length that is not 0");
      }
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
  absl::Span<const Source> span() const { return list_; }

 private:
  std::vector<Source> list_;
  std::vector<Py_buffer> views_;
};

// --- memory that a load gives

// A run of writable bytes with the buffer protocol. It lives until the last view of it is gone.
struct Region {
  std::shared_ptr<void> owner;
  char* data = nullptr;
  uint64_t length = 0;
};

// Private zero pages. Hugepages where the machine has them: a load faults every page once, and 4
// KiB faults would cost more than the copy. They are faulted in by the threads that copy, whose
// blocks end where hugepages do: of two that fault one page at once, each clears one and the
// slower throws its own away.
StatusOr<Region> MakeMemory(uint64_t length) {
  constexpr uint64_t kHugePage = 2 << 20;
  static_assert(cairn::kBlockBytes % kHugePage == 0);
  if (length == 0) return Region{};
  const uint64_t slack = length >= kHugePage ? kHugePage : 0;  // never touched, so never there
  CAIRN_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Anonymous(length + slack));
  madvise(mapping.data(), mapping.length(), MADV_HUGEPAGE);  // only faster where it works
  madvise(mapping.data(), mapping.length(), MADV_DODUMP);    // the caller's own memory from here on
  auto owner = std::make_shared<Mapping>(std::move(mapping));
  const uint64_t past = reinterpret_cast<uintptr_t>(owner->data()) % kHugePage;
  char* const data = owner->data() + (slack == 0 || past == 0 ? 0 : kHugePage - past);
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

// (name, offset, length) of every record.
std::vector<std::tuple<py::str, uint64_t, uint64_t>> ZipDirectory(const Region& region) {
  const auto entries =
      Call([&] { return ReadZipDirectory(absl::string_view(region.data, region.length)); });
  std::vector<std::tuple<py::str, uint64_t, uint64_t>> result;
  result.reserve(entries.size());
  for (const ZipEntry& entry : entries) {
    result.emplace_back(
        py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(
            entry.name.data(), static_cast<Py_ssize_t>(entry.name.size()), "surrogateescape")),
        entry.offset, entry.length);
  }
  return result;
}

// --- answers, as dictionaries whose keys are the fields of cairn.info's classes

py::dict AsDict(const CheckpointFacts& facts) {
  py::dict d;
  d["complete"] = facts.complete;
  d["resident"] = facts.resident;
  d["persisted"] = facts.persisted;
  d["broken"] = facts.broken;
  d["in_conflict"] = facts.in_conflict;
  d["abandoned"] = facts.abandoned;
  d["pinned"] = facts.pinned;
  d["replicas"] = facts.replicas;
  d["replicas_asked"] = facts.replicas_asked;
  return d;
}

py::dict AsDict(const LatestCheckpoint& latest) {
  py::dict d;
  d["job"] = latest.key.job;
  d["step"] = latest.key.step;
  d["attempt"] = latest.key.attempt;
  d["revision"] = latest.key.revision;
  d["world_size"] = latest.world_size;
  d["digest"] = latest.digest;
  d["source"] = latest.source;
  d["as_of"] = static_cast<double>(latest.as_of_unix_ms) / 1000;
  return d;
}

py::str LevelText(client::Level level) {
  const absl::string_view name = client::LevelName(level);
  return py::str(name.data(), name.size());
}

py::dict AsDict(const CheckpointInfo& info) {
  py::dict d;
  d["job"] = info.key.job;
  d["step"] = info.key.step;
  d["attempt"] = info.key.attempt;
  d["revision"] = info.key.revision;
  d["world_size"] = info.world_size;
  d["missing_writers"] = info.missing_writers;
  d["bytes"] = info.bytes;
  d["objects"] = info.objects;
  d["facts"] = AsDict(info.facts);
  d["level"] = LevelText(info.level);
  d["created"] = static_cast<double>(info.created_unix_ms) / 1000;
  d["why"] = info.why;
  d["on_line"] = info.on_line;
  d["digest"] = info.digest;
  return d;
}

py::dict AsDict(const ObjectInfo& info) {
  py::dict d;
  d["name"] = info.name;
  d["writer"] = info.writer;
  const absl::string_view kind = ObjectKindName(info.kind);
  d["kind"] = py::str(kind.data(), kind.size());
  d["length"] = info.length;
  d["level"] = LevelText(info.level);
  d["block_crcs"] = info.block_crcs;
  d["verified"] = static_cast<double>(info.verified_unix_ms) / 1000;
  d["facts"] = AsDict(info.facts);
  return d;
}

// --- arguments

ObjectKind Kind(const std::string& name) {
  return Call([&] { return ParseObjectKind(name); });
}

client::Level ParseLevel(const std::string& name) {
  using client::Level;
  for (const Level level : {Level::kWriting, Level::kCached, Level::kReplicated, Level::kPersisted,
                            Level::kEvicted, Level::kBroken}) {
    if (client::LevelName(level) == absl::string_view(name)) return level;
  }
  Raise(absl::InvalidArgumentError(
      absl::StrCat("level: '", name, "' is none of CACHED, REPLICATED, PERSISTED")));
}

JobPolicy Policy(const py::dict& d) {
  JobPolicy policy;
  const auto mode = d["mode"].cast<std::string>();
  if (mode == "on-demand") {
    policy.mode = PersistMode::kOnDemand;
  } else if (mode == "every") {
    policy.mode = PersistMode::kEvery;
  } else if (mode == "newest") {
    policy.mode = PersistMode::kNewest;
  } else {
    Raise(absl::InvalidArgumentError(
        absl::StrCat("policy.mode: '", mode, "' is none of on-demand, every, newest")));
  }
  policy.every = d["every"].cast<int64_t>();
  policy.keep_last = d["keep_last"].cast<int64_t>();
  policy.keep_every = d["keep_every"].cast<int64_t>();
  return policy;
}

CheckpointRef Ref(const std::string& job, Step step, Attempt attempt, Revision revision) {
  return CheckpointRef{job, step, attempt, revision};
}

client::OpenMode Mode(const std::string& mode) {
  if (mode == "map") return client::OpenMode::kMap;
  if (mode == "file") return client::OpenMode::kFile;
  if (mode == "read") return client::OpenMode::kRead;
  Raise(absl::InvalidArgumentError(absl::StrCat("mode: '", mode, "' is none of map, file, read")));
}

// --- the classes

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
    const ObjectKind object_kind = Kind(kind);
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
    const ObjectKind object_kind = Kind(kind);
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

  py::tuple Commit(const std::map<std::string, std::string>& notes) {
    StepWriter* const writer = get();
    const client::CommitResult result = Call([&] { return writer->Commit(notes); });
    return py::make_tuple(result.digest, result.complete);
  }
  void Abort() {
    StepWriter* const writer = get();
    Call([&] { return writer->Abort(); });
  }
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

 private:
  std::unique_ptr<OpenObject> object_;
};

class PySession {
 public:
  PySession(const std::string& socket, const std::string& job, Attempt attempt, Writer writer,
            int32_t world_size, int32_t local_writers, bool takes_fds, int copy_threads,
            double timeout_s, const std::string& client, const std::optional<py::dict>& policy) {
    ConnectOptions options;
    if (!socket.empty()) options.socket = socket;
    options.job = job;
    options.attempt = attempt;
    options.writer = writer;
    options.world_size = world_size;
    options.local_writers = local_writers;
    options.takes_fds = takes_fds;
    options.copy_threads = copy_threads;
    options.timeout = Seconds(timeout_s);
    options.client = client;
    if (policy.has_value()) options.policy = Policy(*policy);
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

  Attempt ChooseAttempt() {
    return Call([&] { return session_->ChooseAttempt(); });
  }
  void SetAttempt(Attempt attempt) {
    Call([&] { return session_->SetAttempt(attempt); });
  }
  PyStep BeginStep(Step step, std::optional<int32_t> writers, double timeout_s) {
    return PyStep(Call([&] { return session_->BeginStep(step, writers, Seconds(timeout_s)); }));
  }
  PyObjectHandle Open(const std::string& job, Step step, const std::string& name,
                      const std::string& mode, double timeout_s) {
    const client::OpenMode open_mode = Mode(mode);
    return PyObjectHandle(Call([&] {
      return session_->Open(Ref(job, step, 0, -1), name, open_mode, Seconds(timeout_s));
    }));
  }
  py::dict Latest(const std::string& job) {
    return AsDict(Call([&] { return session_->Latest(job); }));
  }
  py::dict Resume(Step step) {
    return AsDict(Call([&] { return session_->Resume(step); }));
  }
  py::dict Stat(const std::string& job, Step step, Attempt attempt, Revision revision) {
    return AsDict(Call([&] { return session_->Stat(Ref(job, step, attempt, revision)); }));
  }
  py::dict StatObject(const std::string& job, Step step, Attempt attempt, Revision revision,
                      const std::string& name) {
    return AsDict(
        Call([&] { return session_->StatObject(Ref(job, step, attempt, revision), name); }));
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
  py::dict Wait(const std::string& job, Step step, const std::string& level, double timeout_s) {
    const client::Level wanted = ParseLevel(level);
    return AsDict(
        Call([&] { return session_->Wait(Ref(job, step, 0, -1), wanted, Seconds(timeout_s)); }));
  }
  py::dict WaitAfter(Step step, double timeout_s) {
    return AsDict(Call([&] { return session_->WaitAfter(step, Seconds(timeout_s)); }));
  }
  void Persist(const std::string& job, Step step) {
    Call([&] { return session_->Persist(Ref(job, step, 0, -1)); });
  }
  void Remove(const std::string& job, Step step, bool memory_only, bool force) {
    Call([&] { return session_->Remove(Ref(job, step, 0, -1), memory_only, force); });
  }
  void Pin(const std::string& job, Step step, bool pinned) {
    Call([&] { return session_->Pin(Ref(job, step, 0, -1), pinned); });
  }
  void SetPolicy(const py::dict& policy) {
    const JobPolicy wanted = Policy(policy);
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

}  // namespace
}  // namespace cairn::python

PYBIND11_MODULE(_native, module) {
  using namespace cairn::python;  // NOLINT(google-build-using-namespace): one screen of bindings
  using py::arg;

  module.doc() = "libcairn; use the package `cairn`, not this.";
  module.attr("NO_STEP") = cairn::kNoStep;
  module.attr("BLOCK_BYTES") = cairn::kBlockBytes;

  py::class_<Region>(module, "Region", py::buffer_protocol())
      .def(py::init([](uint64_t length) { return Call([&] { return MakeMemory(length); }); }),
           arg("length"))
      .def_buffer(&RegionBuffer)
      .def("__len__", [](const Region& region) { return region.length; });

  py::class_<PyStep>(module, "Step")
      .def("write", &PyStep::Write, arg("name"), arg("kind"), arg("sources"))
      .def("write_zip", &PyStep::WriteZip, arg("name"), arg("kind"), arg("records"))
      .def("commit", &PyStep::Commit, arg("notes"))
      .def("abort", &PyStep::Abort)
      .def("drop", &PyStep::Drop)
      .def_property_readonly("bytes_written", &PyStep::bytes_written);

  py::class_<PyObjectHandle>(module, "OpenObject")
      .def("info", &PyObjectHandle::Info)
      .def("read", &PyObjectHandle::Read)
      .def("read_bytes", &PyObjectHandle::ReadBytes)
      .def("map", &PyObjectHandle::Map)
      .def("path", &PyObjectHandle::Path)
      .def("verify", &PyObjectHandle::Verify)
      .def("close", &PyObjectHandle::Close);

  py::class_<PySession>(module, "Session")
      .def(py::init<const std::string&, const std::string&, cairn::Attempt, cairn::Writer, int32_t,
                    int32_t, bool, int, double, const std::string&,
                    const std::optional<py::dict>&>(),
           py::kw_only(), arg("socket"), arg("job"), arg("attempt"), arg("writer"),
           arg("world_size"), arg("local_writers"), arg("takes_fds"), arg("copy_threads"),
           arg("timeout"), arg("client"), arg("policy"))
      .def("close", &PySession::Close)
      .def_property_readonly("id", &PySession::id)
      .def_property_readonly("socket", &PySession::socket)
      .def_property_readonly("storage_root", &PySession::storage_root)
      .def("choose_attempt", &PySession::ChooseAttempt)
      .def("set_attempt", &PySession::SetAttempt, arg("attempt"))
      .def("begin_step", &PySession::BeginStep, arg("step"), arg("writers"), arg("timeout"))
      .def("open", &PySession::Open, arg("job"), arg("step"), arg("name"), arg("mode"),
           arg("timeout"))
      .def("latest", &PySession::Latest, arg("job"))
      .def("resume", &PySession::Resume, arg("step"))
      .def("stat", &PySession::Stat, arg("job"), arg("step"), arg("attempt"), arg("revision"))
      .def("stat_object", &PySession::StatObject, arg("job"), arg("step"), arg("attempt"),
           arg("revision"), arg("name"))
      .def("list", &PySession::List, arg("path"))
      .def("wait", &PySession::Wait, arg("job"), arg("step"), arg("level"), arg("timeout"))
      .def("wait_after", &PySession::WaitAfter, arg("step"), arg("timeout"))
      .def("persist", &PySession::Persist, arg("job"), arg("step"))
      .def("remove", &PySession::Remove, arg("job"), arg("step"), arg("memory_only"), arg("force"))
      .def("pin", &PySession::Pin, arg("job"), arg("step"), arg("pinned"))
      .def("set_policy", &PySession::SetPolicy, arg("policy"))
      .def("status_json", &PySession::StatusJson);

  module.def("zip_directory", &ZipDirectory, arg("region"));
  module.def("parse_path", &ParsePath, arg("path"), arg("default_job"));
  module.def("validate_job",
             [](const std::string& job) { Call([&] { return cairn::ValidateJob(job); }); });
  module.def("validate_name", [](const std::string& name) {
    Call([&] { return cairn::ValidateObjectName(name); });
  });
}
