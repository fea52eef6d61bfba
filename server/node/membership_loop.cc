#include "server/node/membership_loop.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "server/node/recovery.h"

namespace cairn::node {
namespace {

using engine::Rank;
using engine::Written;
namespace ring_step = engine::ring_step;

constexpr MonotonicNanos kLookAtHost = kNanosPerSecond;

Written HowOf(catalog::SeatWritten::How how) {
  switch (how) {
    case catalog::SeatWritten::How::kDone:
      return Written::kDone;
    case catalog::SeatWritten::How::kNot:
      return Written::kNot;
    case catalog::SeatWritten::How::kUnknown:
      return Written::kUnknown;
    case catalog::SeatWritten::How::kRefused:
      break;
  }
  return Written::kRefused;
}

StatusOr<engine::RingTable> FromRows(const StatusOr<catalog::RingRows>& rows) {
  if (!rows.ok()) return rows.status();
  engine::RingTable table{rows->epoch, rows->version, {}};
  table.ranks.reserve(rows->seats.size());
  for (const catalog::SeatRow& row : rows->seats) {
    table.ranks.push_back({row.incarnation, row.instance, row.address, row.beat});
  }
  return table;
}

}  // namespace

MembershipLoop::MembershipLoop(engine::MembershipOptions options, const fact::RingSeat& seat,
                               const engine::RingOptions& runs_as, OpenRing open,
                               AnswersAt answers_at, Clock* clock, MembershipHost* host)
    : options_(options),
      runs_as_(runs_as),
      open_(std::move(open)),
      answers_at_(std::move(answers_at)),
      clock_(clock),
      host_(host),
      membership_(std::move(options), seat),
      engines_incarnation_(seat.incarnation) {}

std::string MembershipLoop::NewInstance() {
  std::string instance = RandomSecret();
  instance.resize(engine::kInstanceBytes);
  return instance;
}

void MembershipLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void MembershipLoop::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

// --- the thread

void MembershipLoop::Run() {
  pthread_setname_np(pthread_self(), "membership");
  Tell();  // the instance is journaled before anything is claimed under it
  for (;;) {
    engine::RingStep next;
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      next = membership_.Next(clock_->Now());
      if (const auto* wait = std::get_if<ring_step::Wait>(&next)) {
        const MonotonicNanos until = std::min(wait->until, look_at_);
        const MonotonicNanos left = std::max<MonotonicNanos>(until - clock_->Now(), 0);
        wake_.WaitUntil(&mu_, std::chrono::steady_clock::now() + std::chrono::nanoseconds(left));
        if (stopping_) return;
      }
    }
    try {
      Do(next);
      // First, so that a fenced node refuses saves before it is asked whether it may start anew.
      Tell();
      if (clock_->Now() < look_at_) continue;
      LookAtHost();
      Tell();
    } catch (const std::exception& e) {  // no memory
      LOG_EVERY_N(ERROR, 100) << "membership: " << e.what();
    }
  }
}

void MembershipLoop::Do(const engine::RingStep& next) {
  if (std::holds_alternative<ring_step::Wait>(next)) return;
  if (std::holds_alternative<ring_step::Read>(next)) return Read();
  if (const auto* probe = std::get_if<ring_step::Probe>(&next)) {
    const bool answers = answers_at_(probe->address, probe->rank);
    LOG(INFO) << "ring: rank " << probe->rank << " stands still in the catalog; "
              << (answers ? "somebody answers" : "nobody answers") << " at " << probe->address;
    MutexLock lock(&mu_);
    return membership_.HasProbed(clock_->Now(), probe->rank, answers);
  }
  Write(next);
}

std::shared_ptr<catalog::RingTable> MembershipLoop::Table(Status* why) {
  {
    MutexLock lock(&mu_);
    if (table_ != nullptr) return table_;
  }
  StatusOr<std::unique_ptr<catalog::RingTable>> opened = open_();
  MutexLock lock(&mu_);
  if (!opened.ok()) {
    *why = opened.status();
    return nullptr;
  }
  table_ = *std::move(opened);
  return table_;
}

void MembershipLoop::Read() {
  StatusOr<catalog::RingRows> rows = absl::UnavailableError("not asked");
  Status why;
  if (const std::shared_ptr<catalog::RingTable> table = Table(&why)) {
    rows = table->Read();
  } else {
    rows = why;
  }
  MutexLock lock(&mu_);
  // The password's file may say another one by now.
  if (absl::IsPermissionDenied(rows.status())) table_.reset();
  membership_.HasRead(clock_->Now(), FromRows(rows));
}

void MembershipLoop::Write(const engine::RingStep& next) {
  catalog::SeatWritten written;
  const std::shared_ptr<catalog::RingTable> table = Table(&written.why);
  std::string instance;
  {
    MutexLock lock(&mu_);
    instance = membership_.seat().instance;
  }
  if (table != nullptr) {
    written = std::visit(
        [&](const auto& asked) -> catalog::SeatWritten {
          using Asked = std::decay_t<decltype(asked)>;
          if constexpr (std::is_same_v<Asked, ring_step::Beat>) {
            return table->Beat({asked.rank, asked.incarnation, instance});
          } else if constexpr (std::is_same_v<Asked, ring_step::Claim>) {
            return table->Claim({asked.rank, asked.incarnation, instance}, options_.address,
                                asked.of, asked.beat);
          } else if constexpr (std::is_same_v<Asked, ring_step::Raise>) {
            return table->Raise({asked.rank, asked.of, instance}, asked.incarnation);
          } else if constexpr (std::is_same_v<Asked, ring_step::Release>) {
            return table->Release({asked.rank, asked.incarnation, instance});
          } else if constexpr (std::is_same_v<Asked, ring_step::MakeRing>) {
            return table->Make(asked.epoch, asked.size);
          } else {
            return {};
          }
        },
        next);
  }
  if (const auto* claim = std::get_if<ring_step::Claim>(&next)) {
    LOG(INFO) << "ring: claiming rank " << claim->rank << " as incarnation " << claim->incarnation
              << " after " << claim->of << ": "
              << (written.how == catalog::SeatWritten::How::kDone  ? "done"
                  : written.how == catalog::SeatWritten::How::kNot ? "another one was faster"
                                                                   : written.why.ToString());
  }
  MutexLock lock(&mu_);
  const Written how = HowOf(written.how);
  if (std::holds_alternative<ring_step::Beat>(next)) {
    return membership_.HasBeaten(clock_->Now(), how, written.version, written.why);
  }
  membership_.HasWritten(clock_->Now(), how, written.why);
}

void MembershipLoop::LookAtHost() {
  look_at_ = clock_->Now() + kLookAtHost;
  bool ranked = false, fenced = false;
  const bool may_claim = host_->MayClaim();
  {
    MutexLock lock(&mu_);
    membership_.SetMayClaim(may_claim);
    ranked = membership_.ranked();
    fenced = membership_.fenced_by().has_value();
  }
  if (ranked && !fenced && host_->Leaves() && host_->NothingIsOnlyHere()) {
    MutexLock lock(&mu_);
    membership_.Leave();
  }
  // It was taken back into service, and its daemon died before the seat said so.
  if (!host_->Leaves()) {
    MutexLock lock(&mu_);
    membership_.ComeBack();
  }
  // A spare wants any rank, also after it has lost one.
  if (fenced && may_claim && options_.wanted == engine::kNoRank && !host_->Leaves() &&
      host_->MayStartAnew()) {
    MutexLock lock(&mu_);
    membership_.StartAnew();
  }
}

void MembershipLoop::Tell() {
  fact::RingSeat seat;
  engine::RingView view;
  std::optional<engine::MemberId> fenced_by;
  int64_t engines_incarnation = 0;
  {
    MutexLock lock(&mu_);
    engines_incarnation = engines_incarnation_;
    seat = membership_.seat();
    view = membership_.view();
    fenced_by = membership_.fenced_by();
  }
  if (seat != told_seat_) {
    host_->SeatChanged(seat);
    told_seat_ = seat;
  }
  if (view != told_view_) {
    host_->ViewChanged(view);
    told_view_ = view;
  }
  if (fenced_by.has_value() && !std::exchange(told_fenced_, true)) host_->Fenced(*fenced_by);
  if (replaced_ || fenced_by.has_value() || !host_->MayClaim()) return;
  const bool ranked = seat.rank != engine::kNoRank;
  size_t others = 0;
  for (const auto& [rank, address] : runs_as_.members) others += rank != engine::kNoRank ? 1 : 0;
  std::string why;
  if (seat.rank != runs_as_.rank) {
    why = ranked ? absl::StrCat("it has rank ", seat.rank, " of the ring")
                 : absl::StrCat("it has rank ", runs_as_.rank, " no more");
  } else if (const size_t now = std::max<size_t>(seat.incarnations.size(), seat.rank + 1);
             ranked && (now != others || seat.epoch != runs_as_.epoch)) {
    why = absl::StrCat("the ring has ", now, " members now, epoch ", seat.epoch, "; it had ",
                       others, ", epoch ", runs_as_.epoch);
  } else if (ranked && seat.incarnation > engines_incarnation) {
    why = absl::StrCat("it is incarnation ", seat.incarnation, " of its rank, it was ",
                       engines_incarnation);
  } else {
    return;
  }
  replaced_ = true;
  host_->Replace(why);
}

// --- what others ask and tell

void MembershipLoop::Heard(const engine::RingView& view) {
  MutexLock lock(&mu_);
  membership_.Heard(view);
  wake_.NotifyAll();
}

void MembershipLoop::Met(const engine::MemberId& life) {
  MutexLock lock(&mu_);
  membership_.Met(life);
  wake_.NotifyAll();
}

void MembershipLoop::Became(int64_t incarnation) {
  MutexLock lock(&mu_);
  engines_incarnation_ = std::max(engines_incarnation_, incarnation);
  membership_.Became(incarnation);
  wake_.NotifyAll();
}

void MembershipLoop::ComeBack() {
  MutexLock lock(&mu_);
  membership_.ComeBack();
  wake_.NotifyAll();
}

std::string MembershipLoop::Problem() const {
  MutexLock lock(&mu_);
  return membership_.Problem();
}

engine::RingView MembershipLoop::View() const {
  MutexLock lock(&mu_);
  return membership_.view();
}

StatusOr<RingState> MembershipLoop::State() {
  Status why;
  const std::shared_ptr<catalog::RingTable> table = Table(&why);
  if (table == nullptr) return why;
  CAIRN_ASSIGN_OR_RETURN(catalog::RingRows rows, table->Read());
  MutexLock lock(&mu_);
  return RingState{std::move(rows), membership_.seat().rank, membership_.seat().incarnation,
                   membership_.Problem()};
}

StatusOr<int64_t> MembershipLoop::Resize(int32_t size) {
  Status why;
  const std::shared_ptr<catalog::RingTable> table = Table(&why);
  if (table == nullptr) return why;
  CAIRN_ASSIGN_OR_RETURN(const catalog::RingRows rows, table->Read());
  for (size_t rank = std::max(size, 1); rank < rows.seats.size(); ++rank) {
    const catalog::SeatRow& seat = rows.seats[rank];
    const bool still = !seat.instance.empty() &&
                       seat.beat_age_ms >= options_.still / kNanosPerMilli &&
                       !answers_at_(seat.address, static_cast<engine::Rank>(rank));
    if (!still) continue;
    LOG(WARNING) << "ring: rank " << rank
                 << " stands still in the catalog, and no member answers at " << seat.address
                 << ": it gives way to a ring of " << size;
    table->Release({static_cast<int32_t>(rank), seat.incarnation, seat.instance});
  }
  return table->Resize(size);
}

}  // namespace cairn::node
