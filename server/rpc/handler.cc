#include "server/rpc/handler.h"

#include <exception>
#include <new>
#include <utility>

#include "glog/logging.h"
#include "server/rpc/convert.h"

namespace cairn::rpc {
namespace {

namespace event = engine::event;

constexpr int64_t kDefaultTimeoutMs = 60'000;
constexpr int32_t kMaxListed = 1000;

[[noreturn]] void Throw(const Status& status, Attempt superseded_by = 0) {
  throw ToWire(status, superseded_by);
}

void OrThrow(const Status& status) {
  if (!status.ok()) Throw(status);
}

template <typename T>
T OrThrow(StatusOr<T> value) {
  if (!value.ok()) Throw(value.status());
  return *std::move(value);
}

// Runs one call: whatever it throws becomes a wire::Error.
template <typename F>
auto Answering(F call) -> decltype(call()) {
  try {
    return call();
  } catch (const wire::Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    Throw(absl::ResourceExhaustedError("the daemon has no memory for this call"));
  } catch (const std::exception& e) {
    LOG(ERROR) << "a call failed: " << e.what();
    Throw(absl::InternalError(e.what()));
  }
}

void CheckCall(int64_t call) {
  if (call < 1) Throw(absl::InvalidArgumentError(absl::StrCat("call: ", call, " is below 1")));
}

}  // namespace

Handler::~Handler() {
  if (said_hello_ && session_.id != 0) node_->ConnectionClosed(session_.id);
}

engine::Caller Handler::Anyone() const {
  engine::Caller caller;
  caller.session = session_.id;
  caller.uid = connection_->credentials().uid;
  caller.gid = connection_->credentials().gid;
  return caller;
}

StatusOr<engine::Caller> Handler::Caller() const {
  if (session_.id == 0) {
    return absl::FailedPreconditionError("session: none on this connection, say hello first");
  }
  return Anyone();
}

template <typename Request>
PartKey Handler::PartOf(const Request& request) const {
  PartKey part = OrThrow(
      ToPart(session_.job, request.step, request.attempt, request.revision, request.writer));
  // Attempt 0 in hello: the session chooses its attempt later.
  if (session_.attempt != 0 && request.attempt != session_.attempt) {
    Throw(absl::InvalidArgumentError(absl::StrCat(
        "attempt: ", request.attempt, ", but this session's hello said ", session_.attempt)));
  }
  return part;
}

MonotonicNanos Handler::DefaultDeadline() const {
  return node_->clock()->Now() + kDefaultTimeoutMs * kNanosPerMilli;
}

template <typename Body>
Body Handler::Expect(node::Answer answer) const {
  if (!answer.body.ok()) Throw(answer.body.status(), answer.superseded_by);
  Body* body = std::get_if<Body>(&*answer.body);
  if (body == nullptr) Throw(absl::InternalError("the engine answered something else"));
  return std::move(*body);
}

void Handler::Greet(wire::HelloReply& reply, node::SessionInfo info) {
  session_ = std::move(info);
  connection_->AllowSilence(true);
  reply.__set_protocol(wire::g_cairn_constants.PROTOCOL_VERSION);
  reply.__set_session(static_cast<int64_t>(session_.id));
  reply.__set_secret(session_.secret);
  reply.__set_fd_socket(node_->options().fd_socket);
  reply.__set_storage_root(node_->options().storage_root);
  reply.__set_node_started_unix_ms(node_->started_unix_ms());
  reply.__set_node(node_->options().name);
}

void Handler::hello(wire::HelloReply& reply, const wire::HelloRequest& request) {
  Answering([&] {
    if (session_.id != 0) {
      Throw(absl::FailedPreconditionError(
          absl::StrCat("session: this connection speaks for ", session_.id, " already")));
    }
    event::Hello hello = OrThrow(ToHello(request));
    hello.caller = Anyone();
    hello.pid = connection_->credentials().pid;
    node::Node::Begun begun = node_->Hello(std::move(hello));
    if (!begun.info.ok()) Throw(begun.info.status(), begun.superseded_by);
    said_hello_ = true;
    Greet(reply, *std::move(begun.info));
  });
}

void Handler::rejoin(wire::HelloReply& reply, int64_t session, const std::string& secret) {
  Answering([&] {
    const uint64_t id = OrThrow(ToUnsigned("session", session));
    node::SessionInfo info = OrThrow(node_->Rejoin(id, secret, connection_->credentials().uid));
    if (session_.id != 0 && session_.id != id) {
      Throw(absl::FailedPreconditionError(
          absl::StrCat("session: this connection speaks for ", session_.id, " already")));
    }
    Greet(reply, std::move(info));
  });
}

void Handler::goodbye() {
  Answering([&] {
    if (session_.id == 0) return;
    node_->Goodbye(session_.id);
    session_ = node::SessionInfo();
    said_hello_ = false;
    connection_->AllowSilence(false);
  });
}

int64_t Handler::chooseAttempt(int64_t call) {
  return Answering([&] {
    CheckCall(call);
    event::ChooseAttempt choose;
    choose.caller = OrThrow(Caller());
    OrThrow(ValidateJob(session_.job));
    choose.job = session_.job;
    choose.deadline = DefaultDeadline();
    choose.unix_ms = node_->clock()->UnixMillis();
    return Expect<engine::reply::Attempt>(node_->Call(std::move(choose))).attempt;
  });
}

void Handler::resume(wire::Latest& reply, int64_t call, int64_t attempt, int64_t step) {
  Answering([&] {
    CheckCall(call);
    event::ResumeFrom resume;
    resume.caller = OrThrow(Caller());
    OrThrow(ValidateJob(session_.job));
    OrThrow(ValidateAttempt(attempt));
    if (step != kNoStep) OrThrow(ValidateStep(step));
    resume.job = session_.job;
    resume.attempt = attempt;
    resume.step = step;
    resume.deadline = DefaultDeadline();
    reply = FromLatest(Expect<engine::reply::Latest>(node_->Call(std::move(resume))),
                       node_->clock()->UnixMillis());
  });
}

void Handler::useCheckpoint(wire::Latest& reply, int64_t call,
                            const wire::CheckpointRef& checkpoint, bool fence) {
  Answering([&] {
    CheckCall(call);
    event::Use use;
    use.caller = OrThrow(Caller());
    use.ref = OrThrow(FromWire(checkpoint, session_.job));
    use.fence = fence;
    use.deadline = DefaultDeadline();
    reply = FromLatest(Expect<engine::reply::Latest>(node_->Call(std::move(use))),
                       node_->clock()->UnixMillis());
  });
}

void Handler::create(wire::CreateReply& reply, int64_t call, const wire::CreateRequest& request) {
  Answering([&] {
    CheckCall(call);
    event::Create create;
    create.caller = OrThrow(Caller());
    create.call = call;
    create.part = PartOf(request);
    OrThrow(ValidateWorld(request.writer, request.world_size));
    create.world_size = request.world_size;
    create.objects = OrThrow(ToSpecs(request.objects));
    if (request.__isset.to_come) create.to_come = OrThrow(ToComeFrom(request.to_come));
    create.deadline = OrThrow(ToDeadline(node_->clock()->Now(), request.timeout_ms));
    create.unmapped = OrThrow(ToIds("unmapped", request.unmapped));
    const auto created = Expect<engine::reply::Create>(node_->Call(std::move(create)));
    for (const engine::reply::GrantedExtent& granted : created.extents) {
      wire::Extent extent;
      extent.__set_lease(static_cast<int64_t>(granted.lease));
      extent.__set_slab(static_cast<int64_t>(granted.slab));
      extent.__set_slab_bytes(static_cast<int64_t>(granted.slab_bytes));
      extent.__set_offset(static_cast<int64_t>(granted.offset));
      extent.__set_length(static_cast<int64_t>(granted.length));
      reply.extents.push_back(extent);
    }
    for (SlabId slab : created.retire) reply.retire.push_back(static_cast<int64_t>(slab));
  });
}

// All but kMaxObjectsPerCall of the seals, so many at a time: others are answered in between.
void Handler::SealSome(int64_t call, const PartKey& part, bool provisional,
                       std::vector<event::Seal>* seals) {
  while (seals->size() > kMaxObjectsPerCall) {
    event::SealObjects some{OrThrow(Caller()), call, part, {}, provisional};
    const auto from = seals->end() - kMaxObjectsPerCall;
    some.seals.assign(std::make_move_iterator(from), std::make_move_iterator(seals->end()));
    seals->erase(from, seals->end());
    Expect<engine::reply::Ok>(node_->Call(std::move(some)));
  }
}

void Handler::seal(int64_t call, const wire::SealRequest& request) {
  Answering([&] {
    CheckCall(call);
    event::SealObjects seal;
    seal.caller = OrThrow(Caller());
    seal.call = call;
    seal.part = PartOf(request);
    seal.seals = OrThrow(ToSeals(request.seals));
    SealSome(call, seal.part, /*provisional=*/false, &seal.seals);
    Expect<engine::reply::Ok>(node_->Call(std::move(seal)));
  });
}

void Handler::commit(wire::CommitReply& reply, int64_t call, const wire::CommitRequest& request) {
  Answering([&] {
    CheckCall(call);
    event::Commit commit;
    commit.caller = OrThrow(Caller());
    commit.call = call;
    commit.part = PartOf(request);
    OrThrow(ValidateWorld(request.writer, request.world_size));
    commit.world_size = request.world_size;
    commit.seals = OrThrow(ToSeals(request.seals));
    commit.notes = request.notes;
    commit.unmapped = OrThrow(ToIds("unmapped", request.unmapped));
    commit.unix_ms = node_->clock()->UnixMillis();
    SealSome(call, commit.part, /*provisional=*/true, &commit.seals);
    auto committed = Expect<engine::reply::Commit>(node_->Call(std::move(commit)));
    reply.__set_digest(committed.digest);
    reply.__set_complete(committed.complete);
  });
}

void Handler::abort(int64_t call, const wire::AbortRequest& request) {
  Answering([&] {
    CheckCall(call);
    event::Abort abort;
    abort.caller = OrThrow(Caller());
    abort.part = PartOf(request);
    Expect<engine::reply::Ok>(node_->Call(std::move(abort)));
  });
}

void Handler::open(wire::OpenReply& reply, int64_t call, const wire::OpenRequest& request) {
  Answering([&] {
    CheckCall(call);
    event::Open open;
    open.caller = OrThrow(Caller());
    open.ref = OrThrow(FromWire(request.checkpoint, session_.job));
    OrThrow(ValidateObjectName(request.name));
    open.name = request.name;
    open.mode = OrThrow(FromWire(request.mode));
    open.verify = request.verify;
    open.deadline = OrThrow(ToDeadline(node_->clock()->Now(), request.timeout_ms));
    node::OpenAnswer answer = node_->Open(std::move(open));
    if (!answer.opened.ok()) Throw(answer.opened.status(), answer.superseded_by);
    const node::Opened& opened = *answer.opened;
    reply.__set_lease(static_cast<int64_t>(opened.lease));
    reply.__set_slab(static_cast<int64_t>(opened.slab));
    reply.__set_slab_bytes(static_cast<int64_t>(opened.bytes));
    reply.__set_offset(static_cast<int64_t>(opened.offset));
    reply.__set_object(ToWire(opened.object));
    reply.__set_step(opened.checkpoint.step);
    reply.__set_attempt(opened.checkpoint.attempt);
    reply.__set_revision(opened.checkpoint.revision);
    reply.__set_exact(opened.exact);
    reply.__set_fd_sent(opened.fd_sent);
  });
}

void Handler::release(int64_t call, const std::vector<int64_t>& leases) {
  Answering([&] {
    CheckCall(call);
    event::Release release;
    release.caller = OrThrow(Caller());
    release.leases = OrThrow(ToIds("leases", leases));
    Expect<engine::reply::Ok>(node_->Release(std::move(release)));
  });
}

void Handler::renew(const std::vector<int64_t>& leases) {
  Answering([&] {
    event::Renew renew;
    renew.caller = OrThrow(Caller());
    renew.leases = OrThrow(ToIds("leases", leases));
    Expect<engine::reply::Ok>(node_->Call(std::move(renew)));
  });
}

void Handler::readChunk(std::string& reply, int64_t lease, int64_t offset, int32_t length) {
  Answering([&] {
    const engine::Caller caller = OrThrow(Caller());
    const uint64_t bytes = OrThrow(ToUnsigned("length", length));
    if (bytes > node::kMaxChunkBytes) {
      Throw(absl::InvalidArgumentError(
          absl::StrCat("length: ", bytes, " is above the limit ", node::kMaxChunkBytes)));
    }
    reply = OrThrow(node_->ReadChunk(caller, OrThrow(ToUnsigned("lease", lease)),
                                     OrThrow(ToUnsigned("offset", offset)), bytes));
  });
}

void Handler::writeChunk(int64_t call, int64_t lease, int64_t offset, const std::string& data) {
  Answering([&] {
    CheckCall(call);
    const engine::Caller caller = OrThrow(Caller());
    if (data.size() > node::kMaxChunkBytes) {
      Throw(absl::InvalidArgumentError(
          absl::StrCat("data: ", data.size(), " bytes, the limit is ", node::kMaxChunkBytes)));
    }
    OrThrow(node_->WriteChunk(caller, OrThrow(ToUnsigned("lease", lease)),
                              OrThrow(ToUnsigned("offset", offset)), data));
  });
}

void Handler::latest(wire::Latest& reply, const std::string& job) {
  Answering([&] {
    event::Latest latest;
    latest.caller = OrThrow(Caller());
    latest.job = job.empty() ? session_.job : job;
    OrThrow(ValidateJob(latest.job));
    latest.deadline = DefaultDeadline();
    reply = FromLatest(Expect<engine::reply::Latest>(node_->Call(std::move(latest))),
                       node_->clock()->UnixMillis());
  });
}

void Handler::statCheckpoint(wire::CheckpointInfo& reply, const wire::CheckpointRef& checkpoint) {
  Answering([&] {
    event::StatCheckpoint stat;
    stat.caller = OrThrow(Caller());
    stat.ref = OrThrow(FromWire(checkpoint, session_.job));
    stat.deadline = DefaultDeadline();
    reply = ToWire(Expect<engine::CheckpointInfo>(node_->Call(std::move(stat))));
  });
}

void Handler::stat(wire::ObjectInfo& reply, const wire::CheckpointRef& checkpoint,
                   const std::string& name) {
  Answering([&] {
    event::StatObject stat;
    stat.caller = OrThrow(Caller());
    stat.ref = OrThrow(FromWire(checkpoint, session_.job));
    OrThrow(ValidateObjectName(name));
    stat.name = name;
    stat.deadline = DefaultDeadline();
    reply = ToWire(Expect<engine::ObjectInfo>(node_->Stat(std::move(stat))));
  });
}

void Handler::ls(wire::ListReply& reply, const std::string& path, const std::string& cursor,
                 int32_t limit) {
  Answering([&] {
    event::List list;
    list.caller = OrThrow(Caller());
    OrThrow(ParseListPath(path).status());
    if (limit < 0) {
      Throw(absl::InvalidArgumentError(absl::StrCat("limit: ", limit, " is below 0")));
    }
    list.path = path;
    list.cursor = cursor;
    list.limit = limit == 0 ? kMaxListed : std::min(limit, kMaxListed);
    list.deadline = DefaultDeadline();
    auto listed = Expect<engine::reply::List>(node_->Call(std::move(list)));
    reply.jobs = std::move(listed.jobs);
    for (const auto& info : listed.checkpoints) reply.checkpoints.push_back(ToWire(info));
    for (const auto& info : listed.objects) reply.objects.push_back(ToWire(info));
    reply.next_cursor = std::move(listed.next_cursor);
  });
}

void Handler::wait(wire::CheckpointInfo& reply, const wire::CheckpointRef& checkpoint,
                   wire::Level::type level, int64_t timeout_ms, int64_t after, int64_t after_head,
                   int32_t after_revision) {
  Answering([&] {
    event::Wait wait;
    wait.caller = OrThrow(Caller());
    wait.ref = OrThrow(FromWire(checkpoint, session_.job));
    wait.level = OrThrow(ToLevelToWaitFor(level));
    if (after < kNoStep) {
      Throw(absl::InvalidArgumentError(absl::StrCat("after: ", after, " is below -1")));
    }
    wait.after = after;
    if (after_head > 0) wait.after_head = after_head;
    wait.after_revision = after_revision;
    wait.deadline = OrThrow(ToDeadline(node_->clock()->Now(), timeout_ms));
    reply = ToWire(Expect<engine::CheckpointInfo>(node_->Call(std::move(wait))));
  });
}

void Handler::persist(int64_t call, const wire::CheckpointRef& checkpoint) {
  Answering([&] {
    CheckCall(call);
    event::PersistNow persist;
    persist.caller = OrThrow(Caller());
    persist.ref = OrThrow(FromWire(checkpoint, session_.job));
    Expect<engine::reply::Ok>(node_->Call(std::move(persist)));
  });
}

void Handler::remove(int64_t call, const wire::CheckpointRef& checkpoint, bool memory_only,
                     bool force) {
  Answering([&] {
    CheckCall(call);
    event::Remove remove;
    remove.caller = OrThrow(Caller());
    remove.ref = OrThrow(FromWire(checkpoint, session_.job));
    remove.memory_only = memory_only;
    remove.force = force;
    remove.deadline = DefaultDeadline();
    Expect<engine::reply::Ok>(node_->Call(std::move(remove)));
  });
}

void Handler::pin(int64_t call, const wire::CheckpointRef& checkpoint, bool pinned) {
  Answering([&] {
    CheckCall(call);
    event::Pin pin;
    pin.caller = OrThrow(Caller());
    pin.ref = OrThrow(FromWire(checkpoint, session_.job));
    pin.pinned = pinned;
    Expect<engine::reply::Ok>(node_->Call(std::move(pin)));
  });
}

void Handler::setPolicy(int64_t call, const std::string& job, const wire::JobPolicy& policy) {
  Answering([&] {
    CheckCall(call);
    event::SetPolicy set;
    set.caller = OrThrow(Caller());
    set.job = job.empty() ? session_.job : job;
    OrThrow(ValidateJob(set.job));
    set.policy = OrThrow(FromWire(policy));
    Expect<engine::reply::Ok>(node_->Call(std::move(set)));
  });
}

void Handler::previewPolicy(wire::PolicyPreview& reply, const wire::PreviewRequest& request) {
  Answering([&] {
    event::PreviewPolicy preview;
    preview.caller = OrThrow(Caller());
    preview.job = request.job.empty() ? session_.job : request.job;
    OrThrow(ValidateJob(preview.job));
    if (request.__isset.policy) preview.policy = OrThrow(FromWire(request.policy));
    preview.deadline = DefaultDeadline();
    reply = ToWire(Expect<PolicyPreview>(node_->Call(std::move(preview))));
  });
}

void Handler::status(wire::NodeStatus& reply) {
  Answering([&] { reply = FromState(OrThrow(node_->State(Anyone())), node_->options()); });
}

}  // namespace cairn::rpc
