#include "server/transport/rdma_peer.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/transport/grant_table.h"

namespace cairn::transport {
namespace {

constexpr int kPolledAtOnce = 32;
// Chunks of a megabyte arrive every few microseconds on a fast network: looking again costs less than to sleep
// and be woken.
constexpr int kSpins = 64;
// A device's event may be lost; completions are looked for so often while chunks are under way.
constexpr int kLookAgainMs = 100;
// While reads go on, the owner hears so often that its grant is used: the device does not tell it.
constexpr MonotonicNanos kRenew = kNanosPerSecond;
// Of a connection, the least recently used go.
constexpr size_t kMostOpened = 1024;
// For what was posted to be flushed, then the queue pairs are destroyed all the same.
constexpr MonotonicNanos kFlush = 100 * kNanosPerMilli;

// The piece that has the byte; null: none.
const RdmaPiece* PieceAt(const std::vector<RdmaPiece>& pieces, uint64_t offset) {
  auto after =
      std::upper_bound(pieces.begin(), pieces.end(), offset,
                       [](uint64_t at, const RdmaPiece& piece) { return at < piece.offset; });
  if (after == pieces.begin()) return nullptr;
  const RdmaPiece& piece = *--after;
  return offset - piece.offset < piece.length ? &piece : nullptr;
}

}  // namespace

RdmaPeer::RdmaPeer(std::string address, const RdmaReaderOptions& options, VerbsDevice* device,
                   const VerbsPort& port, const VerbsGid& gid, RdmaControl* control)
    : address_(std::move(address)),
      options_(options),
      device_(device),
      port_(port),
      gid_(gid),
      control_(control),
      slots_(SlotsOf(options, device->info().limits)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_ = std::thread([this] { Run(); });
}

RdmaPeer::~RdmaPeer() { Close(); }

void RdmaPeer::Close() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

void RdmaPeer::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));  // it cannot block, and what is there wakes as well
}

Status RdmaPeer::Unavailable(const Status& why) const {
  return absl::UnavailableError(absl::StrCat("peer ", address_, ": ", why.message()));
}

void RdmaPeer::Read(Waiting read) {
  const ReadDone done = read.done;
  Status refused;
  {
    MutexLock lock(&mu_);
    if (closing_) {
      refused = absl::CancelledError("the transport is closing");
    } else if (read.into->detached()) {
      refused = absl::CancelledError("the slab that is read into was detached");
    } else if (waiting_.size() >= options_.max_waiting) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat("peer ", address_, ": ", waiting_.size(), " reads wait for it already"));
    } else {
      waiting_.push_back(std::move(read));
    }
  }
  if (refused.ok()) return Wake();
  done(refused);
}

ItsReads RdmaPeer::Finish(const GrantToken& token) {
  const auto its = [&](const Waiting& read) { return read.request.token == token; };
  MutexLock lock(&mu_);
  const bool any =
      std::any_of(waiting_.begin(), waiting_.end(), its) ||
      std::any_of(active_.begin(), active_.end(), [&](const Active& a) { return its(a.read); });
  if (any) return ItsReads::kMayBeUnderWay;
  if (connection_ != nullptr) connection_->opened.erase(token);
  return ItsReads::kHaveEnded;
}

void RdmaPeer::Drop(const RdmaSlab* slab) {
  std::vector<Ended> ended;
  {
    MutexLock lock(&mu_);
    const bool under_way = std::any_of(active_.begin(), active_.end(), [&](const Active& active) {
      return active.read.into.get() == slab;
    });
    // Those into other slabs wait again.
    if (under_way) Break(absl::CancelledError("a slab was detached"), /*counts=*/false, &ended);
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      if (at->into.get() != slab) {
        ++at;
        continue;
      }
      ended.push_back(
          {std::move(*at), absl::CancelledError("the slab that is read into was detached")});
      at = waiting_.erase(at);
    }
  }
  for (Ended& one : ended) End(std::move(one));
  Wake();
}

// --- the thread

void RdmaPeer::Run() {
  pthread_setname_np(pthread_self(), "rdma-read");
  while (true) {
    Outcome outcome = Step();
    for (Ended& one : outcome.ended) End(std::move(one));
    if (outcome.closed) return;
    if (outcome.need.has_value()) {
      Meet(*outcome.need);
    } else if (!outcome.again) {
      Wait(outcome.events);
    }
  }
}

RdmaPeer::Outcome RdmaPeer::Step() {
  Outcome outcome;
  MutexLock lock(&mu_);
  try {
    outcome.closed = closing_;
    if (closing_) {
      CloseLocked(&outcome.ended);
    } else {
      StepLocked(&outcome);
    }
  } catch (const std::exception& e) {  // no memory
    Break(absl::ResourceExhaustedError(e.what()), /*counts=*/true, &outcome.ended);
  }
  return outcome;
}

void RdmaPeer::CloseLocked(std::vector<Ended>* ended) {
  const Status closing = absl::CancelledError("the transport is closing");
  Break(closing, /*counts=*/false, ended);
  for (Waiting& read : waiting_) ended->push_back({std::move(read), closing});
  waiting_.clear();
}

void RdmaPeer::StepLocked(Outcome* outcome) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (Collect(&outcome->ended) || chunks_.empty()) break;
  }
  EndLate(&outcome->ended);
  outcome->need = Activate(&outcome->ended);
  Post(&outcome->ended);
  if (chunks_.empty()) {
    outcome->again = !waiting_.empty();  // of a connection that has just broken
    return;
  }
  const Status armed = connection_->completions->Arm();
  if (!armed.ok()) Break(armed, /*counts=*/true, &outcome->ended);
  // What came before it was armed makes no event.
  outcome->again = !armed.ok() || Collect(&outcome->ended) || !outcome->ended.empty();
  if (!outcome->again) outcome->events = connection_->completions->fd();
}

bool RdmaPeer::Collect(std::vector<Ended>* ended) {
  if (connection_ == nullptr) return false;
  std::array<VerbsCompletion, kPolledAtOnce> arrived;
  const StatusOr<int> count = connection_->completions->Poll(absl::MakeSpan(arrived));
  Status broken = count.status();
  for (int i = 0; count.ok() && i < *count; ++i) {
    const VerbsCompletion& completion = arrived[static_cast<size_t>(i)];
    if (!completion.status.ok()) {
      // The first one says why; those that it took along were flushed.
      chunks_.erase(completion.id);
      if (broken.ok() || absl::IsCancelled(broken)) broken = completion.status;
      continue;
    }
    Arrived(completion.id, ended);
  }
  if (!broken.ok()) Break(broken, /*counts=*/true, ended);
  return !count.ok() || *count > 0;
}

void RdmaPeer::Arrived(uint64_t id, std::vector<Ended>* ended) {
  const auto at = chunks_.find(id);
  if (at == chunks_.end()) return;
  const Chunk chunk = at->second;
  chunks_.erase(at);
  connection_->moved_at = RealClock()->Now();
  --connection_->posted[chunk.pair];
  Active& active = *chunk.read;
  if (--active.under_way > 0 || active.posted < active.read.request.length) return;
  ended->push_back({std::move(active.read), absl::OkStatus()});
  active_.erase(chunk.read);
}

void RdmaPeer::EndLate(std::vector<Ended>* ended) {
  const MonotonicNanos now = RealClock()->Now();
  const auto late = [now](const Waiting& read) { return read.request.deadline <= now; };
  const bool active_late = std::any_of(active_.begin(), active_.end(),
                                       [&](const Active& active) { return late(active.read); });
  if (active_late)
    Break(absl::DeadlineExceededError("its deadline passed"), /*counts=*/false, ended);
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (!late(*at)) {
      ++at;
      continue;
    }
    ended->push_back(
        {std::move(*at), absl::DeadlineExceededError("the deadline of the read has passed")});
    at = waiting_.erase(at);
  }
  if (!chunks_.empty() && now - connection_->moved_at > options_.stall) {
    Break(absl::UnavailableError(
              absl::StrCat("nothing has moved for ", options_.stall / kNanosPerMilli, " ms")),
          /*counts=*/true, ended);
  }
}

std::optional<RdmaPeer::Need> RdmaPeer::Activate(std::vector<Ended>* ended) {
  // As many as keep the slots busy; the others stay where they can still be ended for nothing.
  const size_t most = static_cast<size_t>(slots_) * static_cast<size_t>(options_.queue_pairs) + 1;
  while (!waiting_.empty() && active_.size() < most) {
    Waiting& next = waiting_.front();
    const MonotonicNanos now = RealClock()->Now();
    const MonotonicNanos deadline = std::min(next.request.deadline, now + options_.ask);
    if (connection_ == nullptr) return Need{nullptr, std::nullopt, deadline};
    const auto at = connection_->opened.find(next.request.token);
    if (at == connection_->opened.end() || now - at->second.asked_at > kRenew) {
      return Need{nullptr, next.request.token, deadline};
    }
    Opened& opened = at->second;
    opened.used_at = now;
    if (!Covers(opened.answer.extents, next.from)) {
      ended->push_back({std::move(next), NotPermitted()});
      waiting_.pop_front();
      continue;
    }
    if (next.into->detached()) {
      ended->push_back(
          {std::move(next), absl::CancelledError("the slab that is read into was detached")});
      waiting_.pop_front();
      continue;
    }
    if (!next.into->Registered()) return Need{next.into, std::nullopt, deadline};
    Active active;
    active.local = next.into->local_pieces();
    for (const RdmaOpened::Slab& slab : opened.answer.slabs) {
      if (slab.slab == next.from.slab) active.remote = slab.pieces;
    }
    active.read = std::move(next);
    waiting_.pop_front();
    active_.push_back(std::move(active));
  }
  return std::nullopt;
}

void RdmaPeer::Post(std::vector<Ended>* ended) {
  for (auto at = active_.begin(); at != active_.end(); ++at) {
    while (at->posted < at->read.request.length) {
      const auto least = std::min_element(connection_->posted.begin(), connection_->posted.end());
      if (*least >= slots_) return;
      const Status posted = PostChunk(at, static_cast<size_t>(least - connection_->posted.begin()));
      if (!posted.ok()) return Break(posted, /*counts=*/true, ended);
    }
  }
}

Status RdmaPeer::PostChunk(ActiveAt read, size_t pair) {
  const ReadRequest& request = read->read.request;
  const uint64_t from = read->read.from.offset + read->posted;
  const uint64_t into = request.into.offset + request.into_offset + read->posted;
  const RdmaPiece* const remote = PieceAt(read->remote, from);
  const RdmaPiece* const local = PieceAt(read->local, into);
  if (remote == nullptr || local == nullptr) {
    return absl::UnavailableError("the owner's keys are not of all that it granted");
  }
  const uint64_t length =
      std::min({uint64_t{options_.chunk_bytes}, request.length - read->posted,
                remote->offset + remote->length - from, local->offset + local->length - into});
  const uint64_t id = next_chunk_++;
  CAIRN_RETURN_IF_ERROR(
      connection_->pairs[pair]->PostRead({.id = id,
                                          .local_key = local->key,
                                          .local_offset = into,
                                          .remote_key = remote->key,
                                          .remote_offset = from,
                                          .length = static_cast<uint32_t>(length)}));
  if (chunks_.empty()) connection_->moved_at = RealClock()->Now();
  chunks_.emplace(id, Chunk{read, pair});
  ++connection_->posted[pair];
  read->posted += length;
  ++read->under_way;
  return absl::OkStatus();
}

void RdmaPeer::Break(const Status& why, bool counts, std::vector<Ended>* ended) {
  if (connection_ != nullptr) {
    // What has arrived by now has arrived; nothing arrives once the queue pairs are destroyed.
    for (const auto& pair : connection_->pairs) pair->Break().IgnoreError();
    const MonotonicNanos until = RealClock()->Now() + kFlush;
    std::array<VerbsCompletion, kPolledAtOnce> flushed;
    while (!chunks_.empty() && RealClock()->Now() < until) {
      const StatusOr<int> count = connection_->completions->Poll(absl::MakeSpan(flushed));
      if (!count.ok()) break;
      for (int i = 0; i < *count; ++i) {
        const VerbsCompletion& one = flushed[static_cast<size_t>(i)];
        if (one.status.ok()) {
          Arrived(one.id, ended);
        } else {
          chunks_.erase(one.id);
        }
      }
    }
    last_connection_ = connection_->id;
    connection_.reset();
  }
  chunks_.clear();
  const MonotonicNanos now = RealClock()->Now();
  // The last one first, so that they wait in their order again.
  while (!active_.empty()) {
    Waiting read = std::move(active_.back().read);
    active_.pop_back();
    if (read.into->detached()) {
      ended->push_back(
          {std::move(read), absl::CancelledError("the slab that is read into was detached")});
    } else if (read.request.deadline <= now) {
      ended->push_back(
          {std::move(read), absl::DeadlineExceededError("the deadline of the read has passed")});
    } else if (counts && read.tries > 0) {
      ended->push_back({std::move(read), Unavailable(why)});
    } else {
      if (counts) ++read.tries;
      waiting_.push_front(std::move(read));
    }
  }
}

void RdmaPeer::End(Ended ended) const {
  Waiting& read = ended.read;
  if (!ended.status.ok()) return read.done(ended.status);
  if (!options_.read_back) return read.done(0);
  const ReadRequest& request = read.request;
  read.done(read.into->Crc(request.into.offset + request.into_offset, request.length));
}

void RdmaPeer::Wait(int events) {
  std::array<pollfd, 2> fds = {pollfd{wake_.get(), POLLIN, 0}, pollfd{events, POLLIN, 0}};
  const bool idle = events < 0;
  const int wait_ms = idle ? static_cast<int>(options_.idle / kNanosPerMilli) : kLookAgainMs;
  const int ready = poll(fds.data(), fds.size(), wait_ms);
  uint64_t ignored = 0;
  if ((fds[0].revents & POLLIN) != 0) (void)!read(wake_.get(), &ignored, sizeof(ignored));
  MutexLock lock(&mu_);
  if (connection_ == nullptr) return;
  if (fds[1].revents != 0) connection_->completions->Clear();
  if (idle && ready == 0 && active_.empty() && waiting_.empty()) {
    last_connection_ = connection_->id;
    connection_.reset();
  }
}

// --- what takes its time

void RdmaPeer::Meet(const Need& need) {
  if (need.slab != nullptr) {
    const Status registered = need.slab->Register();
    if (registered.ok()) return;
    return FailWaiting(registered, [&](const Waiting& read) { return read.into == need.slab; });
  }
  if (need.token.has_value()) return AskToOpen(*need.token, need.deadline);
  const Status connected = AskToConnect(need.deadline);
  if (!connected.ok()) FailWaiting(Unavailable(connected), [](const Waiting&) { return true; });
}

void RdmaPeer::AskToOpen(const GrantToken& token, MonotonicNanos deadline) {
  RdmaOpen request;
  request.token = token;
  {
    MutexLock lock(&mu_);
    if (connection_ == nullptr) return;
    request.connection = connection_->id;
  }
  const MonotonicNanos now = RealClock()->Now();
  StatusOr<RdmaOpened> answer = control_->Open(address_, request, deadline);
  const auto its = [&](const Waiting& read) { return read.request.token == token; };
  if (absl::IsFailedPrecondition(answer.status())) {
    // The owner has dropped the connection, to make room. Once more on a new one.
    FailWaiting(Unavailable(answer.status()),
                [&](const Waiting& read) { return its(read) && read.tries > 0; });
    std::vector<Ended> ended;
    {
      MutexLock lock(&mu_);
      Break(answer.status(), /*counts=*/true, &ended);
      for (Waiting& read : waiting_) read.tries += its(read) ? 1 : 0;
    }
    for (Ended& one : ended) End(std::move(one));
    return;
  }
  if (absl::IsPermissionDenied(answer.status())) return FailWaiting(answer.status(), its);
  if (!answer.ok()) return FailWaiting(Unavailable(answer.status()), its);
  MutexLock lock(&mu_);
  if (connection_ == nullptr || connection_->id != request.connection) return;
  // Nobody waits for it any more: its keys are forgotten, for they may be another grant's soon.
  if (std::none_of(waiting_.begin(), waiting_.end(), its)) return;
  std::map<GrantToken, Opened>& opened = connection_->opened;
  if (opened.size() >= kMostOpened && !opened.contains(token)) {
    opened.erase(std::min_element(opened.begin(), opened.end(), [](const auto& a, const auto& b) {
      return a.second.used_at < b.second.used_at;
    }));
  }
  opened[token] = {*std::move(answer), now, now};
}

StatusOr<std::unique_ptr<RdmaPeer::Connection>> RdmaPeer::MakeConnection() const {
  auto connection = std::make_unique<Connection>();
  CAIRN_ASSIGN_OR_RETURN(connection->completions,
                         device_->MakeCompletions(slots_ * options_.queue_pairs));
  for (int i = 0; i < options_.queue_pairs; ++i) {
    CAIRN_ASSIGN_OR_RETURN(
        auto pair, device_->MakeQueuePair(port_, gid_, slots_, connection->completions.get()));
    connection->pairs.push_back(std::move(pair));
  }
  connection->posted.assign(connection->pairs.size(), 0);
  return connection;
}

Status RdmaPeer::AskToConnect(MonotonicNanos deadline) {
  CAIRN_ASSIGN_OR_RETURN(auto connection, MakeConnection());
  RdmaConnect request;
  {
    MutexLock lock(&mu_);
    request.replaces = last_connection_;
  }
  for (const auto& pair : connection->pairs) request.endpoints.push_back(pair->endpoint());
  CAIRN_ASSIGN_OR_RETURN(const RdmaConnected connected,
                         control_->Connect(address_, request, deadline));
  if (connected.endpoints.size() != connection->pairs.size()) {
    return absl::UnavailableError(absl::StrCat("it answered with ", connected.endpoints.size(),
                                               " queue pairs, not ", connection->pairs.size()));
  }
  for (size_t i = 0; i < connection->pairs.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(connection->pairs[i]->Connect(connected.endpoints[i]));
  }
  connection->id = connected.connection;
  MutexLock lock(&mu_);
  connection_ = std::move(connection);
  return absl::OkStatus();
}

void RdmaPeer::FailWaiting(const Status& status, const std::function<bool(const Waiting&)>& which) {
  std::vector<Waiting> failed;
  {
    MutexLock lock(&mu_);
    std::deque<Waiting> kept;
    for (Waiting& read : waiting_) {
      if (which(read)) {
        failed.push_back(std::move(read));
      } else {
        kept.push_back(std::move(read));
      }
    }
    waiting_.swap(kept);
  }
  for (const Waiting& read : failed) read.done(status);
}

}  // namespace cairn::transport
