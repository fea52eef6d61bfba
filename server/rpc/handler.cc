// One file: each call is a few lines, and all share the same few ways to ask, to wait and to answer.
#include "server/rpc/handler.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <new>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "glog/logging.h"
#include "server/engine/journal_use.h"
#include "server/rpc/convert.h"

namespace cairn::rpc {
namespace {

namespace event = engine::event;
namespace reply = engine::reply;

using apache::thrift::TApplicationException;
using apache::thrift::protocol::TMessageType;
using apache::thrift::protocol::TProtocol;

constexpr int64_t kDefaultTimeoutMs = 60'000;
constexpr int32_t kMaxListed = 1000;
// How long a worker waits for the database of a ring.
constexpr int64_t kIndexTimeoutMs = 10'000;
// What the entries of all lists of a message may take in memory.
constexpr uint64_t kMaxEntryBytes = 64 << 20;

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

void CheckCall(int64_t call) {
  if (call < 1) Throw(absl::InvalidArgumentError(absl::StrCat("call: ", call, " is below 1")));
}

// The answer's body as `Body`; throws wire::Error when it is an error.
template <typename Body>
Body Expect(node::Answer answer) {
  if (!answer.body.ok()) Throw(answer.body.status(), answer.superseded_by);
  Body* body = std::get_if<Body>(&*answer.body);
  if (body == nullptr) Throw(absl::InternalError("the engine answered something else"));
  return std::move(*body);
}

wire::CommitReply FromCommitted(const reply::Commit& done) {
  wire::CommitReply reply;
  reply.__set_digest(done.digest);
  reply.__set_complete(done.complete);
  return reply;
}

template <typename Result>
Result Failed(wire::Error error) {
  Result result;
  result.error = std::move(error);
  result.__isset.error = true;
  return result;
}

// The exception that is being handled, as a reply.
wire::Error CaughtError() {
  try {
    throw;
  } catch (const wire::Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return ToWire(absl::ResourceExhaustedError("the daemon has no memory for this call"));
  } catch (const std::exception& e) {
    LOG(ERROR) << "a call failed: " << e.what();
    return ToWire(absl::InternalError(e.what()));
  }
}

// What `make()` returns, or the error that it throws.
template <typename Result, typename F>
Result ResultOf(F make) {
  try {
    return make();
  } catch (...) {
    return Failed<Result>(CaughtError());
  }
}

template <typename Result, typename Value>
Result Success(Value value) {
  Result result;
  result.success = std::move(value);
  result.__isset.success = true;
  return result;
}

// Each thread has one.
MessageReader& Reader() {
  thread_local MessageReader reader(kMaxEntryBytes);
  return reader;
}

// Each thread has one, with the space that its longest reply so far has taken, up to a limit.
FrameWriter& Writer() {
  thread_local std::unique_ptr<FrameWriter> writer;
  thread_local size_t used = 0;
  constexpr size_t kKept = 1 << 20;
  if (writer == nullptr || used > kKept) writer = std::make_unique<FrameWriter>();
  used = writer->Finish().size();
  writer->Reset();
  return *writer;
}

// Valid until this thread encodes the next one.
template <typename Body>
absl::string_view Encode(CallId id, TMessageType type, const Body& body) {
  FrameWriter& writer = Writer();
  TProtocol* out = writer.protocol();
  out->writeMessageBegin(id.name, type, id.sequence);
  body.write(out);
  out->writeMessageEnd();
  return writer.Finish();
}

// One call with its arguments.
using Call = std::function<void(Handler*)>;

struct Method {
  const char* name = "";
  // Both throw what Thrift throws. The second is for another thread than the handler's.
  std::function<void(Handler* handler, TProtocol* in, int32_t sequence)> serve;
  std::function<Call(TProtocol* in, int32_t sequence)> decode;
  std::function<absl::string_view(int32_t sequence, const Status&)> refuse;
};

template <typename Args, typename Result>
Method MethodOf(const char* name, void (Handler::*serve)(CallId, Args&)) {
  Method method;
  method.name = name;
  method.serve = [name, serve](Handler* handler, TProtocol* in, int32_t sequence) {
    Args args;
    const CallId id{name, sequence};
    try {
      args.read(in);
      in->readMessageEnd();
    } catch (const apache::thrift::TException& e) {
      return handler->Unreadable(id, e.what());
    }
    handler->Answering<Result>(id, [&] { (handler->*serve)(id, args); });
  };
  method.decode = [name, serve](TProtocol* in, int32_t sequence) -> Call {
    auto args = std::make_shared<Args>();
    args->read(in);
    in->readMessageEnd();
    const CallId id{name, sequence};
    return [id, serve, args = std::move(args)](Handler* handler) {
      handler->Answering<Result>(id, [&] { (handler->*serve)(id, *args); });
    };
  };
  method.refuse = [name](int32_t sequence, const Status& why) {
    return Encode(CallId{name, sequence}, TMessageType::T_REPLY, Failed<Result>(ToWire(why)));
  };
  return method;
}

const absl::flat_hash_map<absl::string_view, Method>& Methods() {
  using namespace wire;  // NOLINT: the generated names of all calls
  static const auto* const methods = [] {
    auto* all = new absl::flat_hash_map<absl::string_view, Method>();
    const auto add = [all](Method method) { (*all)[method.name] = std::move(method); };
    add(MethodOf<Cairn_hello_args, Cairn_hello_result>("hello", &Handler::Hello));
    add(MethodOf<Cairn_rejoin_args, Cairn_rejoin_result>("rejoin", &Handler::Rejoin));
    add(MethodOf<Cairn_goodbye_args, Cairn_goodbye_result>("goodbye", &Handler::Goodbye));
    add(MethodOf<Cairn_ping_args, Cairn_ping_result>("ping", &Handler::Ping));
    add(MethodOf<Cairn_chooseAttempt_args, Cairn_chooseAttempt_result>("chooseAttempt",
                                                                       &Handler::ChooseAttempt));
    add(MethodOf<Cairn_resume_args, Cairn_resume_result>("resume", &Handler::Resume));
    add(MethodOf<Cairn_useCheckpoint_args, Cairn_useCheckpoint_result>("useCheckpoint",
                                                                       &Handler::UseCheckpoint));
    add(MethodOf<Cairn_create_args, Cairn_create_result>("create", &Handler::Create));
    add(MethodOf<Cairn_seal_args, Cairn_seal_result>("seal", &Handler::Seal));
    add(MethodOf<Cairn_commit_args, Cairn_commit_result>("commit", &Handler::Commit));
    add(MethodOf<Cairn_abort_args, Cairn_abort_result>("abort", &Handler::Abort));
    add(MethodOf<Cairn_openStream_args, Cairn_openStream_result>("openStream",
                                                                 &Handler::OpenStream));
    add(MethodOf<Cairn_store_args, Cairn_store_result>("store", &Handler::Store));
    add(MethodOf<Cairn_open_args, Cairn_open_result>("open", &Handler::Open));
    add(MethodOf<Cairn_release_args, Cairn_release_result>("release", &Handler::Release));
    add(MethodOf<Cairn_renew_args, Cairn_renew_result>("renew", &Handler::Renew));
    add(MethodOf<Cairn_mapStanding_args, Cairn_mapStanding_result>("mapStanding",
                                                                   &Handler::MapStanding));
    add(MethodOf<Cairn_awaitUnmap_args, Cairn_awaitUnmap_result>("awaitUnmap",
                                                                 &Handler::AwaitUnmap));
    add(MethodOf<Cairn_readChunk_args, Cairn_readChunk_result>("readChunk", &Handler::ReadChunk));
    add(MethodOf<Cairn_writeChunk_args, Cairn_writeChunk_result>("writeChunk",
                                                                 &Handler::WriteChunk));
    add(MethodOf<Cairn_latest_args, Cairn_latest_result>("latest", &Handler::Latest));
    add(MethodOf<Cairn_statCheckpoint_args, Cairn_statCheckpoint_result>("statCheckpoint",
                                                                         &Handler::StatCheckpoint));
    add(MethodOf<Cairn_stat_args, Cairn_stat_result>("stat", &Handler::Stat));
    add(MethodOf<Cairn_ls_args, Cairn_ls_result>("ls", &Handler::Ls));
    add(MethodOf<Cairn_wait_args, Cairn_wait_result>("wait", &Handler::Wait));
    add(MethodOf<Cairn_persist_args, Cairn_persist_result>("persist", &Handler::Persist));
    add(MethodOf<Cairn_remove_args, Cairn_remove_result>("remove", &Handler::Remove));
    add(MethodOf<Cairn_pin_args, Cairn_pin_result>("pin", &Handler::Pin));
    add(MethodOf<Cairn_setPolicy_args, Cairn_setPolicy_result>("setPolicy", &Handler::SetPolicy));
    add(MethodOf<Cairn_previewPolicy_args, Cairn_previewPolicy_result>("previewPolicy",
                                                                       &Handler::PreviewPolicy));
    add(MethodOf<Cairn_status_args, Cairn_status_result>("status", &Handler::TellStatus));
    add(MethodOf<Cairn_ring_args, Cairn_ring_result>("ring", &Handler::Ring));
    add(MethodOf<Cairn_resizeRing_args, Cairn_resizeRing_result>("resizeRing",
                                                                 &Handler::ResizeRing));
    add(MethodOf<Cairn_drain_args, Cairn_drain_result>("drain", &Handler::Drain));
    add(MethodOf<Cairn_index_args, Cairn_index_result>("index", &Handler::Index));
    return all;
  }();
  return *methods;
}

}  // namespace

Handler::Handler(node::Node* node, Workers* workers, Connection* connection,
                 std::shared_ptr<ConnectionLimits::Ticket> ticket)
    : node_(node),
      workers_(workers),
      connection_(connection),
      loop_(connection->loop()),
      credentials_(connection->credentials()),
      ticket_(std::move(ticket)) {}

// --- messages

void Handler::Receive(absl::string_view message) {
  try {
    TProtocol* const in = Reader().Read(message);
    std::string name;
    TMessageType type = TMessageType::T_CALL;
    int32_t sequence = 0;
    in->readMessageBegin(name, type, sequence);
    if (type != TMessageType::T_CALL) {
      throw apache::thrift::TException("a message that is no call");
    }
    const auto method = Methods().find(name);
    if (method == Methods().end()) {
      name.resize(std::min<size_t>(name.size(), 64));
      connection_->Send(Encode(CallId{name.c_str(), sequence}, TMessageType::T_EXCEPTION,
                               TApplicationException(TApplicationException::UNKNOWN_METHOD,
                                                     "unknown call: '" + name + "'")));
      return;
    }
    if (!ticket_->refused().ok()) {
      connection_->CloseAfterReply();
      connection_->Send(method->second.refuse(sequence, ticket_->refused()));
      return;
    }
    if (message.size() <= Connection::kSmallMessage) {
      method->second.serve(this, in, sequence);
      return;
    }
    const CallId id{method->second.name, sequence};
    // Decoding takes a time that grows with its length.
    workers_->copying.Add(absl::StrCat(credentials_.uid),
                          [self = shared_from_this(), id, decode = method->second.decode,
                           reserved = connection_->reservation(), bytes = std::string(message)] {
                            Call call;
                            std::string why;
                            try {
                              TProtocol* const whole = Reader().Read(bytes);
                              std::string again;
                              TMessageType what = TMessageType::T_CALL;
                              int32_t number = 0;
                              whole->readMessageBegin(again, what, number);
                              call = decode(whole, id.sequence);
                            } catch (const std::exception& e) {
                              why = e.what();
                            }
                            self->loop_->Post([self, id, reserved, why, call = std::move(call)] {
                              if (self->connection_ == nullptr) return;
                              if (call) {
                                call(self.get());
                              } else {
                                self->Unreadable(id, why);
                              }
                            });
                          });
  } catch (const std::exception& e) {
    LOG_EVERY_N(WARNING, 20) << "client connection: " << e.what();
    connection_->Close();
  }
}

void Handler::ReceiveTooLong(absl::string_view begin, uint32_t length) {
  std::string name;
  try {
    TMessageType type = TMessageType::T_CALL;
    int32_t sequence = 0;
    Reader().Read(begin)->readMessageBegin(name, type, sequence);
    const auto method = Methods().find(name);
    if (type == TMessageType::T_CALL && method != Methods().end()) {
      const Status why = absl::InvalidArgumentError(
          absl::StrCat("message: ", length, " bytes of ", name, ", the limit is ",
                       connection_->max_message_bytes(),
                       "; say it in several calls, each of fewer objects or bytes"));
      connection_->Send(method->second.refuse(sequence, why));
      return;
    }
  } catch (const std::exception& e) {
    name = e.what();
  }
  LOG_EVERY_N(WARNING, 20) << "client connection: a message of " << length
                           << " bytes that is no call: " << absl::CHexEscape(name.substr(0, 64));
  connection_->Close();
}

void Handler::Unreadable(CallId id, const std::string& why) {
  const std::string what = absl::StrCat("message: the arguments of ", id.name, ": ", why);
  LOG_EVERY_N(WARNING, 20) << "client connection: " << what;
  if (session_.id == 0) return connection_->Close();
  answered_ = true;
  connection_->Send(Methods().at(id.name).refuse(id.sequence, absl::InvalidArgumentError(what)));
}

void Handler::Closed() {
  closed_ = true;
  connection_ = nullptr;
  if (waiting_ != 0) node_->Abandon(std::exchange(waiting_, 0));
  if (said_hello_ && session_.id != 0) node_->ConnectionClosed(session_.id);
}

template <typename Result>
void Handler::Respond(CallId id, const Result& result) {
  waiting_ = 0;
  answered_ = true;
  if (connection_ != nullptr) connection_->Send(Encode(id, TMessageType::T_REPLY, result));
}

template <typename Result, typename F>
void Handler::Answering(CallId id, F call) {
  answered_ = false;
  try {
    call();
  } catch (...) {
    Respond(id, Failed<Result>(CaughtError()));
  }
}

node::AnswerCallback Handler::OnLoop(Finish finish) {
  return [self = shared_from_this(), finish = std::move(finish)](node::Answer answer) {
    if (self->loop_->OnThread()) {
      finish(std::move(answer));
      return;
    }
    auto held = std::make_shared<node::Answer>(std::move(answer));
    self->loop_->Post([self, finish, held] { finish(std::move(*held)); });
  };
}

void Handler::Waiting(engine::RequestId request) {
  if (!answered_) waiting_ = request;
}

template <typename Result, typename Body, typename E, typename Fill>
void Handler::Ask(CallId id, E event, Fill fill) {
  const SessionId session = event.caller.session;
  const engine::RequestId request = node_->Call(
      std::move(event), OnLoop([this, id, session, fill = std::move(fill)](node::Answer answer) {
        Respond(id, ResultOf<Result>([&] {
                  return Success<Result>(
                      fill(Expect<Body>(node_->Deliver(session, std::move(answer)))));
                }));
      }));
  Waiting(request);
}

template <typename Result, typename E, typename Fill>
void Handler::AskAndFinish(CallId id, E event, Fill fill) {
  Waiting(
      node_->Call(std::move(event), OnLoop([this, id, fill = std::move(fill)](node::Answer answer) {
                    const auto finish = [fill](node::Answer answered) {
                      return Success<Result>(fill(std::move(answered)));
                    };
                    if (!node::Node::MayWait(answer)) {
                      Respond(id, ResultOf<Result>([&] { return finish(std::move(answer)); }));
                      return;
                    }
                    waiting_ = 0;
                    auto held = std::make_shared<node::Answer>(std::move(answer));
                    Offload<Result>(&workers_->distant, id,
                                    [finish, held] { return finish(std::move(*held)); });
                  })));
}

template <typename Result, typename E>
void Handler::Tell(CallId id, E event) {
  node_->Call(std::move(event), OnLoop([this, id](node::Answer answer) {
                Respond(id, ResultOf<Result>([&] {
                          Expect<reply::Ok>(std::move(answer));
                          return Result();
                        }));
              }));
}

template <typename Result, typename F>
void Handler::Offload(node::JobExecutor* on, CallId id, F work) {
  // What the message and the reply take counts until nobody holds them, whoever has hung up meanwhile.
  on->Add(absl::StrCat(credentials_.uid), [self = shared_from_this(), id, work = std::move(work),
                                           reserved = connection_->reservation()] {
    if (self->closed_) return;
    std::string bytes(Encode(id, TMessageType::T_REPLY, ResultOf<Result>([&] { return work(); })));
    self->loop_->Post([self, reserved, bytes = std::move(bytes)] {
      self->answered_ = true;
      if (self->connection_ != nullptr) self->connection_->Send(bytes);
    });
  });
}

// --- callers

engine::Caller Handler::Anyone() const {
  engine::Caller caller;
  caller.session = session_.id;
  caller.uid = credentials_.uid;
  caller.gid = credentials_.gid;
  return caller;
}

engine::Caller Handler::Caller() const {
  if (session_.id == 0) {
    Throw(absl::FailedPreconditionError("session: none on this connection, say hello first"));
  }
  return Anyone();
}

template <typename Request>
PartKey Handler::PartOf(const Request& request) const {
  PartKey part = OrThrow(
      ToPart(session_.job, request.step, request.attempt, request.revision, request.writer));
  if (session_.writer < 0) {
    Throw(
        absl::FailedPreconditionError("writer: this session's hello said -1, so it only reads; say "
                                      "hello with the writer's rank"));
  }
  // Attempt 0 in hello: the session chooses its attempt later.
  if (session_.attempt != 0 && request.attempt != session_.attempt) {
    Throw(absl::InvalidArgumentError(absl::StrCat(
        "attempt: ", request.attempt, ", but this session's hello said ", session_.attempt)));
  }
  return part;
}

MonotonicNanos Handler::DeadlineOf(int64_t timeout_ms) const {
  constexpr int64_t kLongest = std::numeric_limits<int64_t>::max();
  return OrThrow(ToDeadline(node_->clock()->Now(), timeout_ms == 0 ? kLongest : timeout_ms));
}

MonotonicNanos Handler::DeadlineOrMinute(int64_t timeout_ms) const {
  return DeadlineOf(timeout_ms == 0 ? kDefaultTimeoutMs : timeout_ms);
}

wire::HelloReply Handler::Greet(node::SessionInfo info) {
  session_ = std::move(info);
  if (connection_ != nullptr) connection_->SetGreeted(true);
  wire::HelloReply reply;
  reply.__set_protocol(wire::g_cairn_constants.PROTOCOL_VERSION);
  reply.__set_session(static_cast<int64_t>(session_.id));
  reply.__set_secret(session_.secret);
  reply.__set_fd_socket(node_->options().fd_socket);
  reply.__set_storage_root(node_->options().storage_root);
  reply.__set_node_started_unix_ms(node_->started_unix_ms());
  reply.__set_node(node_->options().name);
  return reply;
}

// --- sessions

void Handler::Hello(CallId id, wire::Cairn_hello_args& args) {
  if (session_.id != 0) {
    Throw(absl::FailedPreconditionError(
        absl::StrCat("session: this connection speaks for ", session_.id, " already")));
  }
  event::Hello hello = OrThrow(ToHello(args.request));
  hello.caller = Anyone();
  hello.pid = credentials_.pid;
  const node::SessionInfo info = node_->Prepare(&hello);
  node_->Call(std::move(hello), OnLoop([this, id, info](node::Answer answer) {
                Respond(id, ResultOf<wire::Cairn_hello_result>([&] {
                          node::Node::Begun begun = node_->Begin(info, std::move(answer));
                          if (!begun.info.ok()) Throw(begun.info.status(), begun.superseded_by);
                          said_hello_ = true;
                          const SessionId session = begun.info->id;
                          auto greeted =
                              Success<wire::Cairn_hello_result>(Greet(*std::move(begun.info)));
                          // Its client hung up before the session was there.
                          if (connection_ == nullptr) node_->ConnectionClosed(session);
                          return greeted;
                        }));
              }));
}

void Handler::Rejoin(CallId id, wire::Cairn_rejoin_args& args) {
  const uint64_t session = OrThrow(ToUnsigned("session", args.session));
  node::SessionInfo info = OrThrow(node_->Rejoin(session, args.secret, credentials_.uid));
  if (session_.id != 0 && session_.id != session) {
    Throw(absl::FailedPreconditionError(
        absl::StrCat("session: this connection speaks for ", session_.id, " already")));
  }
  Respond(id, Success<wire::Cairn_rejoin_result>(Greet(std::move(info))));
}

void Handler::Goodbye(CallId id, wire::Cairn_goodbye_args&) {
  if (session_.id != 0) {
    node_->Goodbye(session_.id);
    session_ = node::SessionInfo();
    said_hello_ = false;
    connection_->SetGreeted(false);
  }
  Respond(id, wire::Cairn_goodbye_result());
}

void Handler::Ping(CallId id, wire::Cairn_ping_args&) { Respond(id, wire::Cairn_ping_result()); }

// --- the line

void Handler::ChooseAttempt(CallId id, wire::Cairn_chooseAttempt_args& args) {
  CheckCall(args.call);
  event::ChooseAttempt choose;
  choose.caller = Caller();
  OrThrow(ValidateJob(session_.job));
  choose.job = session_.job;
  choose.deadline = DeadlineOrMinute(args.timeout_ms);
  choose.unix_ms = node_->clock()->UnixMillis();
  Ask<wire::Cairn_chooseAttempt_result, reply::Attempt>(
      id, std::move(choose), [](reply::Attempt chosen) { return chosen.attempt; });
}

void Handler::Resume(CallId id, wire::Cairn_resume_args& args) {
  CheckCall(args.call);
  event::ResumeFrom resume;
  resume.caller = Caller();
  OrThrow(ValidateJob(session_.job));
  OrThrow(ValidateAttempt(args.attempt));
  if (args.step != kNoStep) OrThrow(ValidateStep(args.step));
  resume.job = session_.job;
  resume.attempt = args.attempt;
  resume.step = args.step;
  resume.fence = args.fence;
  resume.deadline = DeadlineOf(args.timeout_ms);
  Ask<wire::Cairn_resume_result, reply::Latest>(
      id, std::move(resume),
      [this](reply::Latest latest) { return FromLatest(latest, node_->clock()->UnixMillis()); });
}

void Handler::UseCheckpoint(CallId id, wire::Cairn_useCheckpoint_args& args) {
  CheckCall(args.call);
  event::Use use;
  use.caller = Caller();
  use.ref = OrThrow(FromWire(args.checkpoint, session_.job));
  use.fence = args.fence;
  use.deadline = DeadlineOrMinute(args.timeout_ms);
  Ask<wire::Cairn_useCheckpoint_result, reply::Latest>(
      id, std::move(use),
      [this](reply::Latest latest) { return FromLatest(latest, node_->clock()->UnixMillis()); });
}

// --- saving

void Handler::Create(CallId id, wire::Cairn_create_args& args) {
  CheckCall(args.call);
  const wire::CreateRequest& request = args.request;
  event::Create create;
  create.caller = Caller();
  create.call = args.call;
  create.part = PartOf(request);
  OrThrow(ValidateWorld(request.writer, request.world_size));
  create.world_size = request.world_size;
  create.objects = OrThrow(ToSpecs(request.objects));
  if (request.__isset.to_come) create.to_come = OrThrow(ToComeFrom(request.to_come));
  create.deadline = OrThrow(ToDeadline(node_->clock()->Now(), request.timeout_ms));
  create.unmapped = OrThrow(ToIds("unmapped", request.unmapped));
  create.fence = request.fence;
  Ask<wire::Cairn_create_result, reply::Create>(id, std::move(create), FromCreated);
}

// All but kMaxObjectsPerCall of the seals, so many at a time: others are answered in between.
void Handler::SealSome(int64_t call, const PartKey& part, bool provisional,
                       std::vector<event::Seal>* seals) {
  while (seals->size() > kMaxObjectsPerCall) {
    event::SealObjects some{Caller(), call, part, {}, provisional};
    const auto from = seals->end() - kMaxObjectsPerCall;
    some.seals.assign(std::make_move_iterator(from), std::make_move_iterator(seals->end()));
    seals->erase(from, seals->end());
    Expect<reply::Ok>(node_->Call(std::move(some)));  // answered at once
  }
}

void Handler::Seal(CallId id, wire::Cairn_seal_args& args) {
  CheckCall(args.call);
  event::SealObjects seal;
  seal.caller = Caller();
  seal.call = args.call;
  seal.part = PartOf(args.request);
  seal.seals = OrThrow(ToSeals(args.request.seals));
  SealSome(args.call, seal.part, /*provisional=*/false, &seal.seals);
  Tell<wire::Cairn_seal_result>(id, std::move(seal));
}

void Handler::Commit(CallId id, wire::Cairn_commit_args& args) {
  CheckCall(args.call);
  const wire::CommitRequest& request = args.request;
  event::Commit commit;
  commit.caller = Caller();
  commit.call = args.call;
  commit.part = PartOf(request);
  OrThrow(ValidateWorld(request.writer, request.world_size));
  commit.world_size = request.world_size;
  commit.seals = OrThrow(ToSeals(request.seals));
  OrThrow(ValidateNotes(request.notes));
  commit.notes = request.notes;
  commit.unmapped = OrThrow(ToIds("unmapped", request.unmapped));
  commit.unix_ms = node_->clock()->UnixMillis();
  commit.deadline = DeadlineOf(request.timeout_ms);
  commit.fence = request.fence;
  SealSome(args.call, commit.part, /*provisional=*/true, &commit.seals);
  Ask<wire::Cairn_commit_result, reply::Commit>(id, std::move(commit), FromCommitted);
}

void Handler::Abort(CallId id, wire::Cairn_abort_args& args) {
  CheckCall(args.call);
  event::Abort abort;
  abort.caller = Caller();
  abort.part = PartOf(args.request);
  abort.world_size = args.request.world_size;
  if (abort.world_size != 0) OrThrow(ValidateWorld(args.request.writer, abort.world_size));
  Tell<wire::Cairn_abort_result>(id, std::move(abort));
}

void Handler::OpenStream(CallId id, wire::Cairn_openStream_args& args) {
  CheckCall(args.call);
  const StatusOr<LeaseId> lease = node_->OpenStream(Caller());
  if (!lease.ok()) Throw(lease.status());
  Respond(id, Success<wire::Cairn_openStream_result>(static_cast<int64_t>(*lease)));
}

void Handler::Store(CallId id, wire::Cairn_store_args& args) {
  CheckCall(args.call);
  const wire::StoreRequest& request = args.request;
  event::Store store;
  store.caller = Caller();
  store.call = args.call;
  store.part = PartOf(request);
  OrThrow(ValidateWorld(request.writer, request.world_size));
  store.world_size = request.world_size;
  store.objects = OrThrow(ToEntries(request.objects));
  OrThrow(ValidateNotes(request.notes));
  store.notes = request.notes;
  if (request.created_unix_ms <= 0) {
    OrThrow(absl::InvalidArgumentError(
        absl::StrCat("created_unix_ms: ", request.created_unix_ms, ", must be above 0")));
  }
  store.unix_ms = request.created_unix_ms;
  store.stream = OrThrow(ToUnsigned("stream", request.stream));
  store.deadline = OrThrow(ToDeadline(node_->clock()->Now(), request.timeout_ms));
  store.fence = request.fence;
  Ask<wire::Cairn_store_result, reply::Commit>(id, std::move(store), FromCommitted);
}

// --- loading

void Handler::Open(CallId id, wire::Cairn_open_args& args) {
  CheckCall(args.call);
  const wire::OpenRequest& request = args.request;
  event::Open open;
  open.caller = Caller();
  open.ref = OrThrow(FromWire(request.checkpoint, session_.job));
  OrThrow(ValidateObjectName(request.name));
  open.name = request.name;
  open.mode = OrThrow(FromWire(request.mode));
  open.verify = request.verify;
  open.deadline = OrThrow(ToDeadline(node_->clock()->Now(), request.timeout_ms));
  AskAndFinish<wire::Cairn_open_result>(id, open,
                                        [this, caller = open.caller, name = open.name,
                                         deadline = open.deadline](node::Answer answer) {
                                          node::OpenAnswer opened = node_->FinishOpen(
                                              caller, name, deadline, std::move(answer));
                                          if (!opened.opened.ok())
                                            Throw(opened.opened.status(), opened.superseded_by);
                                          return FromOpened(*std::move(opened.opened));
                                        });
}

void Handler::Release(CallId id, wire::Cairn_release_args& args) {
  CheckCall(args.call);
  event::Release release;
  release.caller = Caller();
  release.leases = OrThrow(ToIds("leases", args.leases));
  Expect<reply::Ok>(node_->Release(std::move(release)));  // answered at once
  Respond(id, wire::Cairn_release_result());
}

void Handler::Renew(CallId id, wire::Cairn_renew_args& args) {
  event::Renew renew;
  renew.caller = Caller();
  renew.leases = OrThrow(ToIds("leases", args.leases));
  Expect<reply::Ok>(node_->Renew(std::move(renew)));  // answered at once
  Respond(id, wire::Cairn_renew_result());
}

void Handler::MapStanding(CallId id, wire::Cairn_mapStanding_args& args) {
  CheckCall(args.call);
  event::MapStanding map;
  map.caller = Caller();
  map.lease = OrThrow(ToUnsigned("lease", args.lease));
  Ask<wire::Cairn_mapStanding_result, reply::Standing>(
      id, std::move(map), [](const reply::Standing& standing) {
        wire::StandingReply reply;
        reply.__set_lease(static_cast<int64_t>(standing.lend.lease));
        reply.__set_slab(static_cast<int64_t>(standing.lend.slab));
        reply.__set_slab_bytes(static_cast<int64_t>(standing.lend.slab_bytes));
        return reply;
      });
}

void Handler::AwaitUnmap(CallId id, wire::Cairn_awaitUnmap_args& args) {
  event::AwaitUnmap await;
  await.caller = Caller();
  await.unmapped = OrThrow(ToIds("unmapped", args.unmapped));
  await.known = OrThrow(ToIds("known", args.known));
  if (args.timeout_ms > 0) {
    await.deadline = OrThrow(ToDeadline(node_->clock()->Now(), args.timeout_ms));
  }
  Ask<wire::Cairn_awaitUnmap_result, reply::Unmap>(id, std::move(await),
                                                   [](const reply::Unmap& unmap) {
                                                     std::vector<int64_t> slabs;
                                                     for (const SlabId slab : unmap.slabs)
                                                       slabs.push_back(static_cast<int64_t>(slab));
                                                     return slabs;
                                                   });
}

void Handler::ReadChunk(CallId id, wire::Cairn_readChunk_args& args) {
  const engine::Caller caller = Caller();
  const uint64_t bytes = OrThrow(ToUnsigned("length", args.length));
  if (bytes > node::kMaxChunkBytes) {
    Throw(absl::InvalidArgumentError(
        absl::StrCat("length: ", bytes, " is above the limit ", node::kMaxChunkBytes)));
  }
  const uint64_t lease = OrThrow(ToUnsigned("lease", args.lease));
  const uint64_t offset = OrThrow(ToUnsigned("offset", args.offset));
  node::JobExecutor* const on =
      node::DistantReaders::IsDistant(lease) ? &workers_->distant : &workers_->copying;
  // The reply counts from now on.
  connection_->WhenRoom(bytes, [self = shared_from_this(), on, id, caller, lease, offset, bytes] {
    self->Offload<wire::Cairn_readChunk_result>(on, id, [self, caller, lease, offset, bytes] {
      return Success<wire::Cairn_readChunk_result>(
          OrThrow(self->node_->ReadChunk(caller, lease, offset, bytes)));
    });
  });
}

void Handler::WriteChunk(CallId id, wire::Cairn_writeChunk_args& args) {
  CheckCall(args.call);
  const engine::Caller caller = Caller();
  if (args.data.size() > node::kMaxChunkBytes) {
    Throw(absl::InvalidArgumentError(
        absl::StrCat("data: ", args.data.size(), " bytes, the limit is ", node::kMaxChunkBytes)));
  }
  const uint64_t lease = OrThrow(ToUnsigned("lease", args.lease));
  const uint64_t offset = OrThrow(ToUnsigned("offset", args.offset));
  Offload<wire::Cairn_writeChunk_result>(
      &workers_->copying, id, [this, caller, lease, offset, data = std::move(args.data)] {
        OrThrow(node_->WriteChunk(caller, lease, offset, data));
        return wire::Cairn_writeChunk_result();
      });
}

// --- finding

void Handler::Latest(CallId id, wire::Cairn_latest_args& args) {
  event::Latest latest;
  latest.caller = Caller();
  latest.job = args.job.empty() ? session_.job : args.job;
  OrThrow(ValidateJob(latest.job));
  latest.deadline = DeadlineOrMinute(args.timeout_ms);
  Ask<wire::Cairn_latest_result, reply::Latest>(id, std::move(latest), [this](reply::Latest found) {
    return FromLatest(found, node_->clock()->UnixMillis());
  });
}

void Handler::StatCheckpoint(CallId id, wire::Cairn_statCheckpoint_args& args) {
  event::StatCheckpoint stat;
  stat.caller = Caller();
  stat.ref = OrThrow(FromWire(args.checkpoint, session_.job));
  stat.deadline = DeadlineOrMinute(args.timeout_ms);
  Ask<wire::Cairn_statCheckpoint_result, CheckpointInfo>(
      id, std::move(stat), [](const CheckpointInfo& info) { return ToWire(info); });
}

void Handler::Stat(CallId id, wire::Cairn_stat_args& args) {
  event::StatObject stat;
  stat.caller = Caller();
  stat.ref = OrThrow(FromWire(args.checkpoint, session_.job));
  OrThrow(ValidateObjectName(args.name));
  stat.name = args.name;
  stat.deadline = DeadlineOrMinute(args.timeout_ms);
  // One object's facts: a loader asks once per tensor file, so callers do not wait for each other.
  if (const std::optional<ObjectInfo> known = node_->Peek(stat); known.has_value()) {
    Respond(id, Success<wire::Cairn_stat_result>(ToWire(*known)));
    return;
  }
  AskAndFinish<wire::Cairn_stat_result>(
      id, stat, [this, name = stat.name, deadline = stat.deadline](node::Answer answer) {
        return ToWire(OrThrow(node_->FinishStat(name, deadline, std::move(answer))));
      });
}

void Handler::Ls(CallId id, wire::Cairn_ls_args& args) {
  event::List list;
  list.caller = Caller();
  OrThrow(ParseListPath(args.path).status());
  if (args.limit < 0) {
    Throw(absl::InvalidArgumentError(absl::StrCat("limit: ", args.limit, " is below 0")));
  }
  list.path = args.path;
  list.cursor = args.cursor;
  list.limit = args.limit == 0 ? kMaxListed : std::min(args.limit, kMaxListed);
  list.deadline = DeadlineOrMinute(args.timeout_ms);
  AskAndFinish<wire::Cairn_ls_result>(
      id, list,
      [this, cursor = list.cursor, limit = list.limit,
       deadline = list.deadline](node::Answer answer) {
        reply::List listed = OrThrow(node_->FinishList(cursor, limit, deadline, std::move(answer)));
        wire::ListReply reply;
        reply.jobs = std::move(listed.jobs);
        for (const auto& info : listed.checkpoints) reply.checkpoints.push_back(ToWire(info));
        for (const auto& info : listed.objects) reply.objects.push_back(ToWire(info));
        reply.next_cursor = std::move(listed.next_cursor);
        return reply;
      });
}

void Handler::Wait(CallId id, wire::Cairn_wait_args& args) {
  event::Wait wait;
  wait.caller = Caller();
  wait.ref = OrThrow(FromWire(args.checkpoint, session_.job));
  wait.level = OrThrow(ToLevelToWaitFor(args.level));
  if (args.after < kNoStep) {
    Throw(absl::InvalidArgumentError(absl::StrCat("after: ", args.after, " is below -1")));
  }
  wait.after = args.after;
  if (args.after_head > 0) wait.after_head = args.after_head;
  wait.after_revision = args.after_revision;
  wait.deadline = OrThrow(ToDeadline(node_->clock()->Now(), args.timeout_ms));
  Ask<wire::Cairn_wait_result, CheckpointInfo>(
      id, std::move(wait), [](const CheckpointInfo& info) { return ToWire(info); });
}

// --- keeping

void Handler::Persist(CallId id, wire::Cairn_persist_args& args) {
  CheckCall(args.call);
  event::PersistNow persist;
  persist.caller = Caller();
  persist.ref = OrThrow(FromWire(args.checkpoint, session_.job));
  Tell<wire::Cairn_persist_result>(id, std::move(persist));
}

void Handler::Remove(CallId id, wire::Cairn_remove_args& args) {
  CheckCall(args.call);
  event::Remove remove;
  remove.caller = Caller();
  remove.ref = OrThrow(FromWire(args.checkpoint, session_.job));
  remove.memory_only = args.memory_only;
  remove.force = args.force;
  remove.deadline = DeadlineOrMinute(args.timeout_ms);
  Tell<wire::Cairn_remove_result>(id, std::move(remove));
}

void Handler::Pin(CallId id, wire::Cairn_pin_args& args) {
  CheckCall(args.call);
  event::Pin pin;
  pin.caller = Caller();
  pin.ref = OrThrow(FromWire(args.checkpoint, session_.job));
  pin.pinned = args.pinned;
  Tell<wire::Cairn_pin_result>(id, std::move(pin));
}

void Handler::SetPolicy(CallId id, wire::Cairn_setPolicy_args& args) {
  CheckCall(args.call);
  event::SetPolicy set;
  set.caller = Caller();
  set.job = args.job.empty() ? session_.job : args.job;
  OrThrow(ValidateJob(set.job));
  set.policy = OrThrow(FromWire(args.policy));
  Tell<wire::Cairn_setPolicy_result>(id, std::move(set));
}

void Handler::PreviewPolicy(CallId id, wire::Cairn_previewPolicy_args& args) {
  event::PreviewPolicy preview;
  preview.caller = Caller();
  preview.job = args.request.job.empty() ? session_.job : args.request.job;
  OrThrow(ValidateJob(preview.job));
  if (args.request.__isset.policy) preview.policy = OrThrow(FromWire(args.request.policy));
  preview.deadline = DeadlineOrMinute(args.timeout_ms);
  Ask<wire::Cairn_previewPolicy_result, PolicyPreview>(
      id, std::move(preview), [](const PolicyPreview& made) { return ToWire(made); });
}

void Handler::TellStatus(CallId id, wire::Cairn_status_args&) {
  Offload<wire::Cairn_status_result>(&workers_->copying, id, [this, caller = Anyone()] {
    return Success<wire::Cairn_status_result>(
        FromState(OrThrow(node_->State(caller)), node_->options()));
  });
}

// --- the ring

void Handler::Ring(CallId id, wire::Cairn_ring_args&) {
  Offload<wire::Cairn_ring_result>(&workers_->database, id, [this] {
    return Success<wire::Cairn_ring_result>(FromRing(OrThrow(node_->Ring())));
  });
}

void Handler::ResizeRing(CallId id, wire::Cairn_resizeRing_args& args) {
  CheckCall(args.call);
  Offload<wire::Cairn_resizeRing_result>(
      &workers_->database, id, [this, caller = Anyone(), size = args.size] {
        return Success<wire::Cairn_resizeRing_result>(OrThrow(node_->ResizeRing(caller, size)));
      });
}

void Handler::Drain(CallId id, wire::Cairn_drain_args& args) {
  CheckCall(args.call);
  Offload<wire::Cairn_drain_result>(&workers_->copying, id,
                                    [this, caller = Anyone(), on = args.on] {
                                      OrThrow(node_->Leave(caller, on));
                                      return wire::Cairn_drain_result();
                                    });
}

void Handler::Index(CallId id, wire::Cairn_index_args& args) {
  node::IndexQuestion question;
  question.job = args.request.job;
  if (!question.job.empty()) OrThrow(ValidateJob(question.job));
  question.cursor = args.request.cursor;
  if (args.request.limit < 0 || args.request.limit > node::kMostIndexed) {
    Throw(absl::InvalidArgumentError(
        absl::StrCat("limit: ", args.request.limit, " is not in 0 to ", node::kMostIndexed)));
  }
  question.limit = args.request.limit;
  question.uid = credentials_.uid;
  question.gid = credentials_.gid;
  const MonotonicNanos now = node_->clock()->Now();
  const int64_t timeout_ms =
      args.request.timeout_ms == 0 ? kIndexTimeoutMs : args.request.timeout_ms;
  const MonotonicNanos deadline =
      std::min(OrThrow(ToDeadline(now, timeout_ms)), now + kIndexTimeoutMs * kNanosPerMilli);
  Offload<wire::Cairn_index_result>(
      &workers_->database, id, [this, question = std::move(question), deadline] {
        const node::IndexAnswer answer = OrThrow(node_->AskIndex(question, deadline));
        return Success<wire::Cairn_index_result>(FromIndex(answer, node_->clock()->UnixMillis()));
      });
}

}  // namespace cairn::rpc
