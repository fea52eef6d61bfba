// One file: a connection and the server that admits it end each other.
#include "server/rpc/peer_server.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <thrift/TApplicationException.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "glog/logging.h"
#include "proto/convert.h"
#include "server/rpc/peer_convert.h"

namespace cairn::rpc {
namespace {

using apache::thrift::TApplicationException;
using apache::thrift::protocol::TMessageType;
using apache::thrift::protocol::TProtocol;
using engine::MemberId;

// How often the accepting thread looks whether connections have ended, or it shall stop.
constexpr int kLookMs = 100;
// The longest that a question may wait at the host.
constexpr int64_t kMostTimeoutMs = 30'000;
// Refusals that one answer names; further ones are only logged.
constexpr size_t kMostToldRefusals = 100;

// Of all lists of a message.
uint64_t MaxEntryBytes(const PeersOptions& options) {
  return MessageReader::kMostTimesOfMembers * options.max_message_bytes + MessageReader::kAlways;
}

// The arguments of `say`, read message by message: one that cannot be read is told in `refused`, and the
// others count.
struct SayArgs {
  MessageReader* reader;
  peerwire::Sender sender;
  std::vector<peerwire::Message> messages;
  std::vector<std::string> refused;

  void read(TProtocol* in);

 private:
  void ReadMessages(TProtocol* in);
};

void SayArgs::read(TProtocol* in) {
  using namespace apache::thrift::protocol;  // the types of fields
  std::string name;
  TType type = T_STOP;
  int16_t id = 0;
  in->readStructBegin(name);
  for (;;) {
    in->readFieldBegin(name, type, id);
    if (type == T_STOP) break;
    if (id == 1 && type == T_STRUCT) {
      sender.read(in);
    } else if (id == 2 && type == T_LIST) {
      ReadMessages(in);
    } else {
      in->skip(type);
    }
    in->readFieldEnd();
  }
  in->readStructEnd();
}

void SayArgs::ReadMessages(TProtocol* in) {
  apache::thrift::protocol::TType type = apache::thrift::protocol::T_STOP;
  uint32_t count = 0;
  in->readListBegin(type, count);
  for (uint32_t i = 0; i < count; ++i) {
    peerwire::Message message;
    const Status read = reader->ReadOrPassOver(&message);
    if (read.ok()) {
      messages.push_back(std::move(message));
    } else if (refused.size() < kMostToldRefusals) {
      refused.push_back(absl::StrCat("messages[", i, "] cannot be read: ", read.message()));
    }
  }
  in->readListEnd();
}

}  // namespace

bool PeerServer::Room::Take(uint64_t bytes) {
  MutexLock lock(&mu_);
  if (bytes > free_) return false;
  free_ -= bytes;
  return true;
}

void PeerServer::Room::Give(uint64_t bytes) {
  MutexLock lock(&mu_);
  free_ += bytes;
}

// One caller. Its thread reads a message, answers it, and reads the next.
class PeerServer::Connection {
 public:
  Connection(PeerServer* server, uint64_t number, UniqueFd socket, std::unique_ptr<TlsSession> tls)
      : server_(server),
        context_(server->context_),
        number_(number),
        stream_(std::move(socket), std::move(tls), server->context_->options.call_timeout),
        reader_(MaxEntryBytes(context_->options)) {}

  void Start() {
    thread_ = std::thread([this] { Serve(); });
  }
  void Shutdown() { stream_.Shutdown(); }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  bool stranger() const { return stranger_; }
  bool ended() const { return ended_; }

 private:
  void Serve();
  // OK: the next message may follow.
  Status AnswerOne();
  Status Answer(absl::string_view message);
  template <typename Args, typename Result, typename F>
  Status AnswerWith(const char* method, int32_t sequence, TProtocol* in, F serve, Args args = {});
  template <typename Body>
  Status Send(const char* method, TMessageType type, int32_t sequence, const Body& body);

  // Whether the sender of a call is who it says.
  StatusOr<MemberId> Judge(const peerwire::Sender& sender);
  Status Greet(const peerwire::Peer_greet_args& args, peerwire::Peer_greet_result* result);
  Status Say(SayArgs& args, peerwire::Peer_say_result* result);
  Status Grant(const peerwire::Peer_grant_args& args, peerwire::Peer_grant_result* result);
  Status AskTransport(const peerwire::Peer_askTransport_args& args,
                      peerwire::Peer_askTransport_result* result);
  Status EndGrants(const peerwire::Peer_endGrants_args& args, peerwire::Peer_endGrants_result*);

  PeerServer* const server_;
  const PeerContext* const context_;
  const uint64_t number_;
  PeerStream stream_;
  MessageReader reader_;
  std::atomic<bool> stranger_ = true;  // not believed to be a member, so far
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

// --- connections

PeerServer::PeerServer(const PeerContext* context, std::unique_ptr<TcpListener> listener)
    : context_(context),
      listener_(std::move(listener)),
      room_(context->options.max_messages_bytes) {
  for (const auto& [rank, address] : context->options.ring.members) speakers_[rank];
}

PeerServer::~PeerServer() { Stop(); }

void PeerServer::Start() {
  accepting_ = std::thread([this] { Accept(); });
}

void PeerServer::Stop() {
  stopping_ = true;
  if (accepting_.joinable()) accepting_.join();
  {
    MutexLock lock(&mu_);
    for (const auto& connection : connections_) connection->Shutdown();
  }
  Reap(/*all=*/true);
}

int PeerServer::connections() const {
  MutexLock lock(&mu_);
  return static_cast<int>(std::count_if(connections_.begin(), connections_.end(),
                                        [](const auto& c) { return !c->ended(); }));
}

void PeerServer::Accept() {
  pthread_setname_np(pthread_self(), "peer-accept");
  AwaitListener();
  while (!stopping_) {
    Reap(/*all=*/false);
    const StatusOr<bool> ready = WaitReadable(listener_->fd(), kLookMs);
    if (!ready.ok() || !*ready) continue;
    UniqueFd socket(::accept4(listener_->fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      Admit(std::move(socket));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      // It stays in the queue: to ask again at once would only spin.
      LOG_EVERY_N(WARNING, 100) << "a member's call: " << ErrnoStatus(errno, "accept");
      std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
    }
  }
}

void PeerServer::AwaitListener() {
  if (listener_->Await(stopping_, RealClock()->Now() + kPredecessorGoes) || stopping_) return;
  LOG(WARNING) << "other members cannot reach this node: " << problem()
               << "; this is tried until it succeeds";
  if (listener_->Await(stopping_, std::numeric_limits<MonotonicNanos>::max())) {
    LOG(INFO) << "other members can reach this node, at " << listener_->address().ToString();
  }
}

void PeerServer::Admit(UniqueFd socket) {
  if (!MakeRoom()) {  // its closing says so
    LOG_EVERY_N(WARNING, 100) << "a member's call: " << context_->options.max_connections
                              << " connections are open, no more are taken";
    return;
  }
  try {
    std::unique_ptr<TlsSession> tls;
    if (context_->tls != nullptr) {
      StatusOr<std::unique_ptr<TlsSession>> session = context_->tls->NewSession(/*server=*/true);
      if (!session.ok()) {
        LOG_EVERY_N(WARNING, 100) << "a member's call: " << session.status();
        return;
      }
      tls = *std::move(session);
    }
    MutexLock lock(&mu_);
    connections_.push_back(
        std::make_unique<Connection>(this, ++last_connection_, std::move(socket), std::move(tls)));
    try {
      connections_.back()->Start();
    } catch (...) {
      connections_.pop_back();
      throw;
    }
  } catch (const std::exception& e) {
    LOG_EVERY_N(WARNING, 100) << "a member's call: neither thread nor memory for it: " << e.what();
  }
}

bool PeerServer::MakeRoom() {
  Reap(/*all=*/false);
  std::unique_ptr<Connection> gives_way;
  {
    MutexLock lock(&mu_);
    int strangers = 0;
    auto oldest = connections_.end();
    for (auto at = connections_.begin(); at != connections_.end(); ++at) {
      if (!(*at)->stranger()) continue;
      ++strangers;
      if (oldest == connections_.end()) oldest = at;
    }
    const PeersOptions& options = context_->options;
    const bool full = static_cast<int>(connections_.size()) >= options.max_connections;
    if (full && oldest == connections_.end()) return false;
    if (!full && strangers < options.max_strangers) return true;
    gives_way = std::move(*oldest);
    connections_.erase(oldest);
  }
  gives_way->Shutdown();
  gives_way->Join();  // soon: a stranger's thread waits for nothing but its peer
  return true;
}

void PeerServer::Reap(bool all) {
  std::list<std::unique_ptr<Connection>> ended;
  {
    MutexLock lock(&mu_);
    for (auto at = connections_.begin(); at != connections_.end();) {
      const auto next = std::next(at);
      if (all || (*at)->ended()) ended.splice(ended.end(), connections_, at);
      at = next;
    }
  }
  for (const auto& connection : ended) connection->Join();
}

// --- calls

void PeerServer::Connection::Serve() {
  pthread_setname_np(pthread_self(), "peer-serve");
  Status status;
  try {
    status = stream_.Handshake(RealClock()->Now() + context_->options.call_timeout);
    while (status.ok() && !server_->stopping_) status = AnswerOne();
  } catch (const std::exception& e) {  // no memory, or an answer that is too long
    status = absl::ResourceExhaustedError(e.what());
  }
  if (status.code() == absl::StatusCode::kUnavailable ||
      status.code() == absl::StatusCode::kDeadlineExceeded) {
    VLOG(1) << "a member's connection has ended: " << status;
  } else {
    LOG_EVERY_N(WARNING, 20) << "a member's connection was closed: " << status;
  }
  stream_.Shutdown();
  ended_ = true;  // last: who sees it joins this thread
}

Status PeerServer::Connection::AnswerOne() {
  const PeersOptions& options = context_->options;
  const bool known = !stranger_;
  CAIRN_RETURN_IF_ERROR(stream_.WaitReadable(
      RealClock()->Now() + (known ? options.idle_timeout : options.call_timeout)));
  const MonotonicNanos deadline = RealClock()->Now() + options.call_timeout;
  CAIRN_ASSIGN_OR_RETURN(const uint32_t length, stream_.ReceiveLength(deadline));
  const uint32_t most = known ? options.max_message_bytes : options.max_stranger_message_bytes;
  if (length > most) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", length, " bytes, at most ",
                                                   most,
                                                   known ? "" : " before it is known as a member"));
  }
  const uint64_t room = length > options.max_stranger_message_bytes ? length : 0;
  if (!server_->room_.Take(room)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of ", length, " bytes: other members' messages take the ",
                     options.max_messages_bytes, " bytes that there are for them"));
  }
  const absl::Cleanup give_back = [this, room] { server_->room_.Give(room); };
  CAIRN_ASSIGN_OR_RETURN(const std::string message,
                         stream_.ReceiveMessage(length, deadline + TimeToMove(length)));
  try {
    return Answer(message);
  } catch (const apache::thrift::TException& e) {
    return absl::InvalidArgumentError(absl::StrCat("a message that is not one: ", e.what()));
  }
}

Status PeerServer::Connection::Answer(absl::string_view message) {
  std::string method;
  TMessageType type = apache::thrift::protocol::T_CALL;
  int32_t sequence = 0;
  TProtocol* const in = reader_.Read(
      message, stranger_ ? MessageReader::kMostTimes : MessageReader::kMostTimesOfMembers);
  in->readMessageBegin(method, type, sequence);
  using namespace peerwire;  // the types that Thrift has made of the calls
  if (method == "greet") {
    return AnswerWith<Peer_greet_args, Peer_greet_result>(
        "greet", sequence, in, [this](auto& args, auto* result) { return Greet(args, result); });
  }
  if (stranger_) {  // nothing else that it says is even read
    const TApplicationException first(TApplicationException::PROTOCOL_ERROR, "greet first");
    CAIRN_RETURN_IF_ERROR(Send("", apache::thrift::protocol::T_EXCEPTION, sequence, first));
    return absl::UnavailableError("a caller that has not greeted");
  }
  if (method == "say") {
    return AnswerWith<SayArgs, Peer_say_result>(
        "say", sequence, in, [this](auto& args, auto* result) { return Say(args, result); },
        SayArgs{&reader_, {}, {}, {}});
  }
  if (method == "grant") {
    return AnswerWith<Peer_grant_args, Peer_grant_result>(
        "grant", sequence, in, [this](auto& args, auto* result) { return Grant(args, result); });
  }
  if (method == "askTransport") {
    return AnswerWith<Peer_askTransport_args, Peer_askTransport_result>(
        "askTransport", sequence, in,
        [this](auto& args, auto* result) { return AskTransport(args, result); });
  }
  if (method == "endGrants") {
    return AnswerWith<Peer_endGrants_args, Peer_endGrants_result>(
        "endGrants", sequence, in,
        [this](auto& args, auto* result) { return EndGrants(args, result); });
  }
  const TApplicationException unknown(TApplicationException::UNKNOWN_METHOD, "no such call");
  return Send("", apache::thrift::protocol::T_EXCEPTION, sequence, unknown);
}

template <typename Args, typename Result, typename F>
Status PeerServer::Connection::AnswerWith(const char* method, int32_t sequence, TProtocol* in,
                                          F serve, Args args) {
  args.read(in);
  in->readMessageEnd();
  Result result;
  const Status status = serve(args, &result);
  if (!status.ok()) {
    Result refused;
    refused.error = ToWire(status);
    refused.__isset.error = true;
    return Send(method, apache::thrift::protocol::T_REPLY, sequence, refused);
  }
  return Send(method, apache::thrift::protocol::T_REPLY, sequence, result);
}

template <typename Body>
Status PeerServer::Connection::Send(const char* method, TMessageType type, int32_t sequence,
                                    const Body& body) {
  FrameWriter writer;
  writer.protocol()->writeMessageBegin(method, type, sequence);
  body.write(writer.protocol());
  writer.protocol()->writeMessageEnd();
  const absl::string_view frame = writer.Finish();
  return stream_.Send(
      frame, RealClock()->Now() + context_->options.call_timeout + TimeToMove(frame.size()));
}

StatusOr<MemberId> PeerServer::Connection::Judge(const peerwire::Sender& sender) {
  StatusOr<MemberId> claim = context_->Check(sender, stream_.peer());
  if (claim.ok()) {
    const Status judged = context_->book->Judge(*claim, RealClock()->Now());
    if (!judged.ok()) claim = judged;
  }
  stranger_ = !claim.ok();
  return claim;
}

Status PeerServer::Connection::Greet(const peerwire::Peer_greet_args& args,
                                     peerwire::Peer_greet_result* result) {
  const peerwire::Greeting& greeting = args.greeting;
  // One without a rank looks who is here (peer_probe.h).
  if (context_->options.ring.from_catalog && greeting.sender.member.rank == engine::kNoRank) {
    result->success.__set_greeting(context_->Greeting(engine::kNoRank));
    result->success.__set_refused(ToWire(absl::FailedPreconditionError("rank: you have none")));
    result->__isset.success = true;
    return absl::OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(const MemberId claim, context_->Check(greeting, stream_.peer()));
  const StatusOr<MemberId> judged = Judge(greeting.sender);
  if (judged.ok()) {
    context_->Learn(claim.rank, greeting);
  } else {
    result->success.__set_refused(ToWire(judged.status()));
    if (absl::IsFailedPrecondition(judged.status())) {
      LOG_EVERY_N(WARNING, 20) << "a greeting is refused: " << judged.status();
    }
  }
  result->success.__set_greeting(context_->Greeting(claim.rank));
  result->__isset.success = true;
  return absl::OkStatus();
}

Status PeerServer::Connection::Say(SayArgs& args, peerwire::Peer_say_result* result) {
  CAIRN_ASSIGN_OR_RETURN(const MemberId from, Judge(args.sender));
  Speaker& speaker = server_->speakers_.at(from.rank);
  MutexLock lock(&speaker.mu);
  if (number_ < speaker.connection) {
    return absl::UnavailableError("this member has said something on a newer connection");
  }
  speaker.connection = number_;
  std::vector<std::string>& refused = result->success.refused;
  refused = std::move(args.refused);
  for (const std::string& why : refused) {
    LOG_EVERY_N(ERROR, 100) << "rank " << from.rank << ": a message is refused: " << why;
  }
  for (peerwire::Message& message : args.messages) {
    StatusOr<engine::peer::Message> said = FromPeerWire(std::move(message));
    if (!said.ok()) {
      LOG_EVERY_N(ERROR, 100) << "rank " << from.rank
                              << ": a message is refused: " << said.status();
      if (refused.size() < kMostToldRefusals) {
        refused.push_back(std::string(said.status().message()));
      }
      continue;
    }
    context_->host->PeerSaid(from, *std::move(said));
  }
  result->success.__set_member(ToPeerWire(context_->host->Self()));
  result->__isset.success = true;
  return absl::OkStatus();
}

Status PeerServer::Connection::Grant(const peerwire::Peer_grant_args& args,
                                     peerwire::Peer_grant_result* result) {
  CAIRN_ASSIGN_OR_RETURN(const MemberId from, Judge(args.sender));
  CAIRN_ASSIGN_OR_RETURN(engine::peer::GrantQuestion question, FromPeerWire(args.question));
  const int64_t timeout_ms = std::clamp<int64_t>(args.question.timeout_ms, 0, kMostTimeoutMs);
  CAIRN_ASSIGN_OR_RETURN(engine::peer::GrantAnswer answer,
                         context_->host->Grant(from, std::move(question),
                                               RealClock()->Now() + timeout_ms * kNanosPerMilli));
  constexpr size_t kAround = 1 << 16;
  size_t bytes = answer.manifest.size();
  for (const auto& region : answer.regions) bytes += region.descriptor.size() + sizeof(uint32_t);
  if (bytes + kAround > context_->options.max_message_bytes) {
    // Its token was told nobody.
    context_->host->EndGrant(from, {answer.grant, transport::ItsReads::kHaveEnded});
    return absl::ResourceExhaustedError(absl::StrCat("the part's manifest and regions have ", bytes,
                                                     " bytes, an answer at most ",
                                                     context_->options.max_message_bytes));
  }
  result->success = ToPeerWire(std::move(answer));
  result->__isset.success = true;
  return absl::OkStatus();
}

Status PeerServer::Connection::AskTransport(const peerwire::Peer_askTransport_args& args,
                                            peerwire::Peer_askTransport_result* result) {
  CAIRN_ASSIGN_OR_RETURN(const MemberId from, Judge(args.sender));
  CAIRN_ASSIGN_OR_RETURN(result->success, context_->host->TransportAsked(from, args.question));
  result->__isset.success = true;
  return absl::OkStatus();
}

Status PeerServer::Connection::EndGrants(const peerwire::Peer_endGrants_args& args,
                                         peerwire::Peer_endGrants_result*) {
  CAIRN_ASSIGN_OR_RETURN(const MemberId from, Judge(args.sender));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<uint64_t> grants, GrantsFromWire(args.grants));
  CAIRN_ASSIGN_OR_RETURN(const std::vector<uint64_t> idle, GrantsFromWire(args.idle));
  for (const uint64_t grant : grants) context_->host->EndGrant(from, {grant});
  for (const uint64_t grant : idle) {
    context_->host->EndGrant(from, {grant, transport::ItsReads::kHaveEnded});
  }
  return absl::OkStatus();
}

}  // namespace cairn::rpc
