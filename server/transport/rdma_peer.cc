#include "server/transport/rdma_peer.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <new>
#include <system_error>
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
// Reads that lack something, in one look for some that do not.
constexpr int kMostPassedOver = 64;
// Reads whose checksums are remembered: more than one peer has under way.
constexpr size_t kMostCameRemembered = 64;
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

Status RdmaPeer::DestinationDetached() {
  return absl::CancelledError("the slab that is read into was detached");
}

Status RdmaPeer::Late() {
  return absl::DeadlineExceededError("the deadline of the read has passed");
}

RdmaPeer::RdmaPeer(std::string address, const RdmaReaderOptions& options, VerbsDevice* device,
                   int port, RdmaControl* control)
    : address_(std::move(address)),
      options_(options),
      device_(device),
      port_(port),
      control_(control),
      slots_(SlotsOf(options, device->info().limits)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_.valid()) throw std::system_error(errno, std::generic_category(), "eventfd");
  needs_thread_ = std::thread([this] { RunNeeds(); });
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (...) {
    Close();
    throw;
  }
}

RdmaPeer::~RdmaPeer() { Close(); }

void RdmaPeer::Close() {
  {
    MutexLock lock(&mu_);
    closing_ = true;
    needs_.NotifyAll();
  }
  Wake();
  for (std::thread* const thread : {&thread_, &needs_thread_}) {
    if (thread->joinable()) thread->join();
  }
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
      refused = DestinationDetached();
    } else if (waiting_.size() >= options_.max_waiting) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat("peer ", address_, ": ", waiting_.size(), " reads wait for it already"));
    } else {
      const auto before =
          std::find_if(came_.rbegin(), came_.rend(),
                       [&](const RdmaOpen::Came& one) { return one.bytes == read.from; });
      if (read.request.again && before != came_.rend()) read.came = *before;
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
      ended.push_back({std::move(*at), DestinationDetached()});
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
    if (!outcome.again) Wait(outcome.events);
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
  Activate(&outcome->ended);
  Post(&outcome->ended);
  Renew();
  if (chunks_.empty()) {
    // A connection has just broken; or else its reads wait for what is being met, which wakes this thread.
    outcome->again = !outcome->ended.empty() || (!waiting_.empty() && !need_.has_value());
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
    ended->push_back({std::move(*at), Late()});
    at = waiting_.erase(at);
  }
  if (!chunks_.empty() && now - connection_->moved_at > options_.stall) {
    Break(absl::UnavailableError(
              absl::StrCat("nothing has moved for ", options_.stall / kNanosPerMilli, " ms")),
          /*counts=*/true, ended);
  }
}

void RdmaPeer::Activate(std::vector<Ended>* ended) {
  // As many as keep the slots busy; the others stay where they can still be ended for nothing.
  const size_t most = static_cast<size_t>(slots_) * static_cast<size_t>(options_.queue_pairs) + 1;
  int lacking = 0;
  for (auto at = waiting_.begin();
       at != waiting_.end() && active_.size() < most && lacking < kMostPassedOver;) {
    Active active;
    std::optional<Need> lacks;
    const Status prepared = Prepare(*at, &active, &lacks);
    if (lacks.has_value()) {
      AskFor(*std::move(lacks));
      ++lacking;
      ++at;
      continue;
    }
    if (prepared.ok()) {
      active.read = std::move(*at);
      active_.push_back(std::move(active));
    } else {
      ended->push_back({std::move(*at), prepared});
    }
    at = waiting_.erase(at);
  }
}

Status RdmaPeer::Prepare(const Waiting& read, Active* active, std::optional<Need>* lacks) {
  if (read.into->detached()) return DestinationDetached();
  if (connection_ == nullptr) {
    *lacks = Need{};  // a connection
    return absl::OkStatus();
  }
  const GrantToken& token = read.request.token;
  const bool anew = read.request.again && !read.asked_anew;
  const auto at = connection_->opened.find(token);
  const MonotonicNanos now = RealClock()->Now();
  if (at == connection_->opened.end() || now - at->second.answered_at > kGoodFor || anew) {
    *lacks = Need{nullptr, token, anew, read.came};
    return absl::OkStatus();
  }
  Opened& opened = at->second;
  opened.used_at = now;
  if (!Covers(opened.answer.extents, read.from)) return NotPermitted();
  active->local = read.into->Registered() ? read.into->local_pieces() : std::vector<RdmaPiece>();
  if (active->local.empty()) {
    *lacks = Need{.slab = read.into};
    return absl::OkStatus();
  }
  for (const RdmaOpened::Slab& slab : opened.answer.slabs) {
    if (slab.slab == read.from.slab) active->remote = slab.pieces;
  }
  return absl::OkStatus();
}

void RdmaPeer::Renew() {
  if (connection_ == nullptr || need_.has_value()) return;
  const MonotonicNanos now = RealClock()->Now();
  for (const Active& active : active_) {
    const auto at = connection_->opened.find(active.read.request.token);
    if (at != connection_->opened.end() && now - at->second.asked_at > kRenew) {
      return AskFor(Need{.slab = nullptr, .token = at->first});
    }
  }
}

void RdmaPeer::AskFor(Need need) {
  if (need_.has_value()) return;
  need_ = std::move(need);
  needs_.NotifyAll();
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
      ended->push_back({std::move(read), DestinationDetached()});
    } else if (read.request.deadline <= now) {
      ended->push_back({std::move(read), Late()});
    } else if (counts && read.tries > 0) {
      ended->push_back({std::move(read), Unavailable(why)});
    } else {
      if (counts) ++read.tries;
      waiting_.push_front(std::move(read));
    }
  }
}

void RdmaPeer::End(Ended ended) {
  const Waiting& read = ended.read;
  if (!ended.status.ok()) return read.done(ended.status);
  if (!options_.read_back) return read.done(0);
  const ReadRequest& request = read.request;
  StatusOr<uint32_t> crc = absl::ResourceExhaustedError("no memory to check what arrived");
  try {
    crc = read.into->Crc(request.into.offset + request.into_offset, request.length);
  } catch (const std::bad_alloc&) {
  }
  if (crc.ok()) {
    MutexLock lock(&mu_);
    if (came_.size() >= kMostCameRemembered) came_.pop_front();
    came_.push_back({read.from, *crc});
  }
  read.done(std::move(crc));
}

void RdmaPeer::Wait(int events) {
  std::array<pollfd, 2> fds = {pollfd{wake_.get(), POLLIN, 0}, pollfd{events, POLLIN, 0}};
  bool idle = events < 0;
  if (idle) {
    MutexLock lock(&mu_);
    idle = waiting_.empty();  // else somebody may be late, while what it lacks is being met
  }
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

}  // namespace cairn::transport
