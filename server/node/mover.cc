// One file: what the pump and the threads that ask do is under one lock.
#include "server/node/mover.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "glog/logging.h"

namespace cairn::node {

using engine::Rank;

// What the pump waits for. Thread-safe.
class Mover::Inbox {
 public:
  void Put(EndedRead ended) {
    MutexLock lock(&mu_);
    ended_.push_back(std::move(ended));
    wake_.NotifyOne();
  }
  void Wake() {
    MutexLock lock(&mu_);
    woken_ = true;
    wake_.NotifyOne();
  }
  void Close() {
    MutexLock lock(&mu_);
    closed_ = true;
    wake_.NotifyOne();
  }
  // What has ended, once there is something or Wake was called, or after `patience` (0: any time). False
  // when it is closed.
  bool Wait(MonotonicNanos patience, std::deque<EndedRead>* ended) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(patience);
    MutexLock lock(&mu_);
    while (ended_.empty() && !woken_ && !closed_) {
      if (patience == 0) {
        wake_.Wait(&mu_);
      } else if (!wake_.WaitUntil(&mu_, until)) {
        break;
      }
    }
    woken_ = false;
    ended->swap(ended_);
    return !closed_;
  }

 private:
  Mutex mu_;  // a leaf
  CondVar wake_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<EndedRead> ended_ ABSL_GUARDED_BY(mu_);  // no more than reads under way
};

Mover::Mover(const MoverOptions& options, Links* links, transport::Transport* transport,
             cache::Cache* cache, Attached* attached, Clock* clock,
             std::function<void(engine::Event)> post)
    : options_(options),
      links_(links),
      transport_(transport),
      cache_(cache),
      attached_(attached),
      clock_(clock),
      post_(std::move(post)),
      inbox_(std::make_shared<Inbox>()),
      schedule_(options) {
  threads_.emplace_back([this] { Pump(); });
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Ask(); });
}

void Mover::Start(engine::action::Fetch fetch) {
  MutexLock lock(&mu_);
  const bool twice = std::any_of(flights_.begin(), flights_.end(), [&](const auto& of) {
    return of.second.asked.part == fetch.part || of.first == fetch.fetch;
  });
  if (twice) {
    refused_.push_back({fetch.fetch, absl::AlreadyExistsError("the part is being fetched")});
  } else {
    Flight& flight = flights_[fetch.fetch];
    for (const Rank source : fetch.sources) flight.sources[source];
    flight.asked = std::move(fetch);
    questions_.NotifyAll();
  }
  inbox_->Wake();
}

void Mover::From(const engine::action::FetchFrom& from) {
  MutexLock lock(&mu_);
  const auto at = flights_.find(from.fetch);
  if (at == flights_.end()) return;
  std::map<Rank, Source>& sources = at->second.sources;
  for (auto source = sources.begin(); source != sources.end();) {
    const auto& [rank, state] = *source;
    if (std::find(from.sources.begin(), from.sources.end(), rank) != from.sources.end()) {
      ++source;
      continue;
    }
    schedule_.RemoveSource(from.fetch, rank);
    if (state.grant.has_value()) unused_grants_.push_back(state.HeldOf(rank));
    source = sources.erase(source);
  }
  for (const Rank rank : from.sources) sources[rank];
  questions_.NotifyAll();
  inbox_->Wake();
}

void Mover::Cancel(uint64_t fetch) {
  MutexLock lock(&mu_);
  const auto at = flights_.find(fetch);
  if (at == flights_.end()) return;
  at->second.end = absl::CancelledError("the fetch is not wanted any more");
  inbox_->Wake();
}

Mover::Counters Mover::counters() const {
  MutexLock lock(&mu_);
  return counters_;
}

void Mover::Stop() {
  {
    MutexLock lock(&mu_);
    if (stopping_) return;
    stopping_ = true;
    questions_.NotifyAll();
  }
  inbox_->Close();
  for (std::thread& thread : threads_) thread.join();
  std::vector<SlabId> slabs;
  {
    MutexLock lock(&mu_);
    for (const auto& [fetch, flight] : flights_) slabs.push_back(flight.asked.slab);
  }
  for (const SlabId slab : slabs) attached_->Detach(slab);
}

// --- the pump

void Mover::Pump() {
  pthread_setname_np(pthread_self(), "mover");
  try {
    MonotonicNanos patience = 0;
    for (std::deque<EndedRead> ended; inbox_->Wait(patience, &ended); ended.clear()) {
      ToDo todo;
      {
        MutexLock lock(&mu_);
        for (EndedRead& read : ended) Take(std::move(read));
        Tend(&todo);
        const MonotonicNanos look = NextLook();
        patience = look == 0 ? 0 : std::max<MonotonicNanos>(kNanosPerMilli, look - clock_->Now());
      }
      Do(std::move(todo));
    }
  } catch (const std::exception& e) {
    // As an executor: without a report the engine would keep for ever what a fetch pinned.
    LOG(FATAL) << "mover: " << e.what();
  }
}

void Mover::Take(EndedRead ended) {
  const auto at = flights_.find(ended.read.fetch);
  if (at == flights_.end()) {
    schedule_.Ended(ended.read, TransferSchedule::How::kFailed, clock_->Now());
    return;
  }
  Flight* const flight = &at->second;
  const TransferSchedule::How how = Judge(flight, ended);
  const bool lost = !schedule_.Ended(ended.read, how, clock_->Now());
  // One that is still being asked, or rests, may have it right.
  const bool hope = std::any_of(flight->sources.begin(), flight->sources.end(), [](const auto& of) {
    return of.second.is != Source::Is::kReady && of.second.is != Source::Is::kGone;
  });
  if (lost && !hope) {
    const PlannedBlock& block = flight->plan->blocks[ended.read.block];
    const ObjectEntry& object = *flight->plan->table->entries[block.object];
    flight->end = absl::DataLossError(
        absl::StrCat("block ", block.offset / object.block_bytes, " of \"", object.name,
                     "\" came otherwise than its checksum says from every source"));
  }
}

// What a read's end says about the block, and about its source.
TransferSchedule::How Mover::Judge(Flight* flight, const EndedRead& ended) {
  using How = TransferSchedule::How;
  const auto source = flight->sources.find(ended.read.source);
  // Not of a grant that was given up since: what failed then is told already.
  const bool current = source != flight->sources.end() && source->second.is == Source::Is::kReady &&
                       source->second.grant == ended.grant;
  if (ended.crc.ok() && *ended.crc == flight->plan->blocks[ended.read.block].crc) {
    ReachFailpoint(Failpoint::kRingBlock);
    counters_.bytes += ended.read.length;
    if (current) source->second.failures = 0;
    return How::kVerified;
  }
  if (ended.crc.ok() || absl::IsDataLoss(ended.crc.status())) {
    ++counters_.bad_blocks;
    return How::kBad;
  }
  ++counters_.failed_reads;
  const Status& why = ended.crc.status();
  if (absl::IsNotFound(why)) {
    flight->end = absl::InternalError(why.message());
  } else if (absl::IsCancelled(why)) {
    if (!flight->end.has_value()) flight->end = why;
  } else if (current && absl::IsPermissionDenied(why) && ended.after_idling) {
    // The fetch waited for its turn longer than the grant did. That is no failure of the source.
    schedule_.RemoveSource(ended.read.fetch, ended.read.source);
    source->second.is = Source::Is::kToAsk;
    questions_.NotifyOne();
  } else if (current && absl::IsInvalidArgument(why)) {
    Gone(flight, ended.read.source, why);
  } else if (current) {
    Failed(flight, ended.read.source, why);
  }
  return How::kFailed;
}

void Mover::Tend(ToDo* todo) {
  const MonotonicNanos now = clock_->Now();
  todo->grants.swap(unused_grants_);
  for (engine::event::Fetched& refused : refused_) todo->ended.push_back({std::move(refused)});
  refused_.clear();
  for (auto at = flights_.begin(); at != flights_.end();) {
    Flight& flight = at->second;
    Settle(at->first, &flight, todo);
    if (flight.end.has_value()) {
      End(at->first, &flight, todo);
      at = flights_.erase(at);
    } else {
      ++at;
    }
  }
  while (const auto read = schedule_.Next(now)) Begin(*read, todo);
}

// Whether the flight has come to its end, which sources may be asked again, and what is to be said.
void Mover::Settle(uint64_t fetch, Flight* flight, ToDo* todo) {
  if (flight->end.has_value()) return;
  if (flight->plan != nullptr && schedule_.Complete(fetch)) {
    flight->end = absl::OkStatus();
    return;
  }
  const MonotonicNanos now = clock_->Now();
  bool any = false;
  std::string why;
  for (auto& [rank, source] : flight->sources) {
    if (source.is == Source::Is::kResting && source.again_at <= now) {
      source.is = Source::Is::kToAsk;
      questions_.NotifyAll();
    }
    any = any || source.is != Source::Is::kGone;
    absl::StrAppend(&why, why.empty() ? "" : "; ", "rank ", rank, ": ", source.why.message());
  }
  if (!any) {
    flight->end =
        absl::UnavailableError(absl::StrCat("no source is left", why.empty() ? "" : ": ", why));
    return;
  }
  const uint64_t bytes = schedule_.VerifiedBytes(fetch);
  if (bytes > flight->said && flight->said_at + options_.advance_interval <= now) {
    flight->said = bytes;
    flight->said_at = now;
    todo->advances.emplace_back(engine::event::FetchAdvanced{fetch, bytes});
  }
}

void Mover::End(uint64_t fetch, Flight* flight, ToDo* todo) {
  ToDo::Ended ended;
  ended.event.fetch = fetch;
  ended.event.status = *flight->end;
  if (flight->end->ok()) {
    ended.event.table = flight->plan->table;
    ended.event.digest = flight->plan->digest;
    ++counters_.fetched;
  }
  ended.slab = flight->asked.slab;
  // Reads under way would go on writing.
  ended.detach = schedule_.UnderWay(fetch) > 0;
  for (const auto& [rank, source] : flight->sources) {
    if (source.grant.has_value()) todo->grants.push_back(source.HeldOf(rank));
  }
  schedule_.Remove(fetch);
  todo->ended.push_back(std::move(ended));
}

void Mover::Begin(const TransferSchedule::Read& read, ToDo* todo) {
  Flight& flight = flights_.at(read.fetch);
  Source& source = flight.sources.at(read.source);
  const PlannedBlock& block = flight.plan->blocks[read.block];
  transport::ReadRequest request;
  request.address = source.address;
  request.token = source.token;
  request.region = source.regions[block.object].descriptor;
  request.offset = block.offset;
  request.into = flight.plan->table->extents[block.object];
  request.into_offset = block.offset;
  request.length = block.length;
  request.again = read.again;
  const MonotonicNanos now = clock_->Now();
  request.deadline = now + options_.read_timeout;
  const bool after_idling = now - source.used_at > source.valid / 2;
  source.used_at = now;
  todo->reads.emplace_back(std::move(request), EndedRead{read, *source.grant, after_idling,
                                                         absl::InternalError("under way")});
}

// When there is something to do that nothing else brings; 0: never.
MonotonicNanos Mover::NextLook() const {
  MonotonicNanos next = schedule_.WakeAt(clock_->Now());
  const auto at = [&](MonotonicNanos when) { next = next == 0 ? when : std::min(next, when); };
  for (const auto& [fetch, flight] : flights_) {
    for (const auto& [rank, source] : flight.sources) {
      if (source.is == Source::Is::kResting) at(source.again_at);
    }
    if (schedule_.VerifiedBytes(fetch) > flight.said) {
      at(flight.said_at + options_.advance_interval);
    }
  }
  return next;
}

void Mover::EndGrant(const Held& held) {
  links_->EndGrant(held.source, {held.grant, transport_->Finish(held.address, held.token)});
}

void Mover::Do(ToDo todo) {
  for (auto& [request, read] : todo.reads) {
    transport_->Read(std::move(request),
                     [inbox = inbox_, read = std::move(read)](StatusOr<uint32_t> crc) {
                       inbox->Put({read.read, read.grant, read.after_idling, std::move(crc)});
                     });
  }
  for (engine::Event& advance : todo.advances) post_(std::move(advance));
  for (const ToDo::Ended& ended : todo.ended) {
    if (ended.detach) attached_->Detach(ended.slab);
  }
  for (const Held& held : todo.grants) EndGrant(held);
  for (ToDo::Ended& ended : todo.ended) {
    ReachFailpoint(Failpoint::kRingFetched);
    post_(std::move(ended.event));
  }
  if (!todo.ended.empty()) {
    MutexLock lock(&mu_);
    questions_.NotifyAll();  // fetches that waited for their turn
  }
}

// --- sources

void Mover::Failed(Flight* flight, Rank rank, Status why) {
  const bool alone = std::none_of(
      flight->sources.begin(), flight->sources.end(),
      [rank](const auto& of) { return of.first != rank && of.second.is != Source::Is::kGone; });
  Source& source = flight->sources.at(rank);
  const int tries = alone ? options_.last_source_tries : options_.source_tries;
  if (++source.failures >= tries) return Gone(flight, rank, std::move(why));
  schedule_.RemoveSource(flight->asked.fetch, rank);
  source.is = Source::Is::kResting;
  source.again_at = clock_->Now() + (options_.back_off << std::min(source.failures - 1, 6));
  source.why = std::move(why);
  questions_.NotifyAll();  // one that waits for its turn may have it
}

void Mover::Gone(Flight* flight, Rank rank, Status why) {
  Source& source = flight->sources.at(rank);
  schedule_.RemoveSource(flight->asked.fetch, rank);
  if (source.grant.has_value()) unused_grants_.push_back(source.HeldOf(rank));
  source.grant.reset();
  source.is = Source::Is::kGone;
  source.why = std::move(why);
}

// --- the threads that ask

namespace {

// `known`, if the answer is about what it reads; a plan by the answer where none is known.
StatusOr<std::shared_ptr<const FetchPlan>> PlanOf(const engine::action::Fetch& fetch,
                                                  std::shared_ptr<const FetchPlan> known,
                                                  const engine::peer::GrantAnswer& answer) {
  if (known != nullptr) {
    CAIRN_RETURN_IF_ERROR(CheckSource(*known, answer));
    return known;
  }
  CAIRN_ASSIGN_OR_RETURN(FetchPlan plan, PlanFetch(fetch, answer));
  return std::make_shared<const FetchPlan>(std::move(plan));
}

}  // namespace

void Mover::Ask() {
  pthread_setname_np(pthread_self(), "mover-ask");
  try {
    for (Asking asking; NextQuestion(&asking); asking = Asking{}) {
      if (asking.old_grant.has_value()) EndGrant(*asking.old_grant);
      const engine::peer::GrantQuestion question{
          asking.asked.part, asking.plan == nullptr ? asking.asked.digest : asking.plan->digest};
      ReachFailpoint(Failpoint::kRingAsk);
      StatusOr<PeerLinks::Granted> granted =
          links_->AskGrant(asking.source, question, clock_->Now() + options_.grant_timeout);
      StatusOr<std::shared_ptr<const FetchPlan>> plan = absl::UnavailableError("no answer");
      if (granted.ok()) plan = PlanOf(asking.asked, asking.plan, granted->answer);
      std::vector<bool> there;
      if (plan.ok() && asking.asked.begun_before && asking.plan == nullptr)
        there = FindThere(**plan);
      Answered(asking, std::move(granted), std::move(plan), there);
    }
  } catch (const std::exception& e) {
    LOG(FATAL) << "mover: " << e.what();
  }
}

bool Mover::NextQuestion(Asking* asking) {
  MutexLock lock(&mu_);
  while (!stopping_) {
    if (FindQuestion(asking)) return true;
    questions_.Wait(&mu_);
  }
  return false;
}

// The first source to ask of the first flight in the schedule's order. One member that does not answer
// leaves a thread for the others.
bool Mover::FindQuestion(Asking* asking) {
  std::vector<std::pair<engine::action::FetchFor, uint64_t>> order;
  for (const auto& [fetch, flight] : flights_) {
    if (!flight.end.has_value()) order.emplace_back(flight.asked.what_for, fetch);
  }
  std::sort(order.begin(), order.end());
  size_t active = 0;
  for (const auto& [what_for, fetch] : order) {
    Flight& flight = flights_.at(fetch);
    // One whose sources all rest, or are gone, holds up no other.
    const bool rests =
        std::all_of(flight.sources.begin(), flight.sources.end(), [](const auto& of) {
          return of.second.is == Source::Is::kResting || of.second.is == Source::Is::kGone;
        });
    if (!rests && ++active > options_.active_fetches) break;
    for (auto& [rank, source] : flight.sources) {
      if (source.is != Source::Is::kToAsk) continue;
      if (asked_[rank] >= std::max(1, options_.threads - 1)) continue;
      ++asked_[rank];
      source.is = Source::Is::kAsking;
      *asking = {fetch, rank, flight.asked, flight.plan, std::nullopt, clock_->Now()};
      if (source.grant.has_value()) asking->old_grant = source.HeldOf(rank);
      source.grant.reset();
      return true;
    }
  }
  return false;
}

std::vector<bool> Mover::FindThere(const FetchPlan& plan) const {
  std::vector<bool> there;
  there.reserve(plan.blocks.size());
  for (const PlannedBlock& block : plan.blocks) {
    ExtentRef extent = plan.table->extents[block.object];
    extent.offset += block.offset;
    extent.length = block.length;
    const auto crcs = cache_->Crcs(extent, block.length, block.length);
    there.push_back(crcs.ok() && crcs->front() == block.crc);
  }
  return there;
}

void Mover::Answered(const Asking& asking, StatusOr<PeerLinks::Granted> granted,
                     StatusOr<std::shared_ptr<const FetchPlan>> plan,
                     const std::vector<bool>& there) {
  MutexLock lock(&mu_);
  --asked_[asking.source];
  inbox_->Wake();
  questions_.NotifyOne();
  const auto at = flights_.find(asking.fetch);
  const bool wanted = at != flights_.end() && at->second.sources.contains(asking.source) &&
                      at->second.sources.at(asking.source).is == Source::Is::kAsking;
  if (!wanted) {
    // Its token was shown to nobody.
    if (granted.ok()) {
      unused_grants_.push_back({asking.source, granted->answer.grant, granted->address, {}});
    }
    return;
  }
  Flight* const flight = &at->second;
  if (!granted.ok()) {
    if (absl::IsNotFound(granted.status())) return Gone(flight, asking.source, granted.status());
    return Failed(flight, asking.source, granted.status());
  }
  Source& source = flight->sources.at(asking.source);
  source.grant = granted->answer.grant;
  // The right manifest, and no room: no other source has it otherwise.
  if (absl::IsFailedPrecondition(plan.status())) flight->end = plan.status();
  const Status of_source = plan.ok() ? Adopt(flight, *std::move(plan), there) : plan.status();
  if (!of_source.ok()) return Gone(flight, asking.source, of_source);
  source.is = Source::Is::kReady;
  std::copy(granted->answer.token.begin(), granted->answer.token.end(), source.token.begin());
  source.address = std::move(granted->address);
  source.regions = std::move(granted->answer.regions);
  source.used_at = asking.at;
  source.valid = std::clamp<int64_t>(granted->answer.valid_ms, 0, 3'600'000) * kNanosPerMilli;
  schedule_.AddSource(asking.fetch, asking.source);
}

Status Mover::Adopt(Flight* flight, std::shared_ptr<const FetchPlan> plan,
                    const std::vector<bool>& there) {
  if (flight->plan != nullptr) {  // another source was as fast
    if (flight->plan->digest == plan->digest) return absl::OkStatus();
    return absl::NotFoundError(
        absl::StrCat("the manifest has digest ", plan->digest, ", not ", flight->plan->digest));
  }
  const Status attached = attached_->Attach(flight->asked.slab);
  if (!attached.ok()) {
    flight->end = Annotate(attached, "the slab of the fetch");
    return attached;
  }
  std::vector<uint32_t> lengths;
  lengths.reserve(plan->blocks.size());
  for (const PlannedBlock& block : plan->blocks) lengths.push_back(block.length);
  schedule_.Add(flight->asked.fetch, flight->asked.what_for, std::move(lengths), there);
  counters_.kept_bytes += schedule_.VerifiedBytes(flight->asked.fetch);
  flight->plan = std::move(plan);
  return absl::OkStatus();
}

}  // namespace cairn::node
