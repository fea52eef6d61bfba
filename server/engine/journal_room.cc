#include "server/engine/journal_room.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/human_bytes.h"
#include "common/keys.h"
#include "server/engine/needs.h"

namespace cairn::engine {
namespace {

// What ends things (leases, sessions, drops) must fit above the first, the small things of calls above
// the second.
constexpr uint64_t kCreatePercent = 90, kSmallPercent = 95;  // 90: as journal::Options
// Of what creates may have, one user's may be set aside at once.
constexpr uint64_t kUserPercent = 75;
// Each of them may get a slab of its own, which the journal knows too.
constexpr uint64_t kSlabBytes = 2 * JournalRoom::kFactBytes;

void Add(uint32_t uid, uint64_t bytes, std::map<uint32_t, uint64_t>* to) {
  if (bytes > 0) (*to)[uid] += bytes;
}

void Take(uint32_t uid, uint64_t bytes, std::map<uint32_t, uint64_t>* from) {
  if (bytes == 0) return;
  const auto of_user = from->find(uid);
  if ((of_user->second -= bytes) == 0) from->erase(of_user);
}

}  // namespace

uint64_t JournalRoom::CostOfSeal(const PartKey& part, absl::string_view name, uint64_t length) {
  // What is padded may grow, by less than one block more than this.
  const uint64_t checksums = sizeof(uint32_t) * (BlockCount(length + length / 16, kBlockBytes) + 1);
  return kFactBytes + part.checkpoint.job.size() + name.size() + checksums;
}

uint64_t JournalRoom::CostOfPart(const PartKey& part) {
  return 8 * (kFactBytes + part.checkpoint.job.size());
}

uint64_t JournalRoom::CostOf(const event::Create& create, bool first) {
  uint64_t bytes = CostOf(create.part, create.to_come);
  if (first) bytes += CostOfPart(create.part);
  const uint64_t job = create.part.checkpoint.job.size();
  for (const event::ObjectSpec& object : create.objects) {
    // It is created, and lent to a client without descriptors.
    bytes += 2 * (kFactBytes + job + object.name.size()) +
             CostOfSeal(create.part, object.name, object.length);
    if (object.length >= kLargeObject) bytes += kSlabBytes + job;
  }
  return bytes;
}

uint64_t JournalRoom::CostOf(const PartKey& part, const event::ToCome& to_come) {
  const uint64_t checksums =
      sizeof(uint32_t) * (BlockCount(to_come.bytes + to_come.bytes / 16, kBlockBytes));
  const uint64_t of_object = 3 * (kFactBytes + part.checkpoint.job.size()) + 2 * sizeof(uint32_t);
  const uint64_t slabs = to_come.bytes / kLargeObject;
  if (to_come.objects > kUnmeetable / of_object) return kUnmeetable;
  return to_come.objects * of_object + 3 * to_come.name_bytes + checksums +
         slabs * (kSlabBytes + part.checkpoint.job.size());
}

Status JournalRoom::Check(absl::string_view what, uint64_t bytes, uint64_t limit) const {
  if (capacity_ == 0) return absl::OkStatus();
  const uint64_t most = capacity_ / 100 * limit;
  if (used_ + reserved_ <= most && bytes <= most - used_ - reserved_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "journal: ", what, " may cost ", HumanBytes(bytes), " of it; ", HumanBytes(used_),
      " are used and ", HumanBytes(reserved_), " set aside for what is being written, of the ",
      HumanBytes(most), " that may be (", limit, " % of half of journal.bytes)"));
}

void JournalRoom::Reserve(uint32_t uid, uint64_t bytes) {
  reserved_ += bytes;
  Add(uid, bytes, &reserved_by_);
}

void JournalRoom::Release(uint32_t uid, uint64_t bytes) {
  reserved_ -= bytes;
  Take(uid, bytes, &reserved_by_);
}

uint64_t JournalRoom::CostOfKept(const PartKey& part, size_t slabs) {
  return (1 + slabs) * (kFactBytes + part.checkpoint.job.size());
}

void JournalRoom::ChargeSteps(uint32_t uid, uint64_t bytes) { Add(uid, bytes, &kept_by_); }
void JournalRoom::RefundSteps(uint32_t uid, uint64_t bytes) { Take(uid, bytes, &kept_by_); }
void JournalRoom::ChargeLasting(uint32_t uid, uint64_t bytes) { Add(uid, bytes, &held_by_); }
void JournalRoom::RefundLasting(uint32_t uid, uint64_t bytes) { Take(uid, bytes, &held_by_); }

uint64_t JournalRoom::Of(const std::map<uint32_t, uint64_t>& users, uint32_t uid) {
  const auto of_user = users.find(uid);
  return of_user == users.end() ? 0 : of_user->second;
}

uint64_t JournalRoom::MostOfUser() const {
  return capacity_ / 100 * kCreatePercent / 100 * kUserPercent;
}

bool JournalRoom::OverShare(uint32_t uid, uint64_t bytes, uint64_t given_up) const {
  if (capacity_ == 0 || bytes == 0 || options_->Unlimited(uid)) return false;
  return bytes > MostOfUser() || Theirs(uid, given_up) > MostOfUser() - bytes;
}

uint64_t JournalRoom::Theirs(uint32_t uid, uint64_t given_up) const {
  const uint64_t kept = Of(kept_by_, uid);
  return Of(reserved_by_, uid) + Of(held_by_, uid) + kept - std::min(kept, given_up);
}

std::optional<uint32_t> JournalRoom::Greediest() const {
  const auto most =
      std::max_element(kept_by_.begin(), kept_by_.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (kept_by_.size() < 2) return std::nullopt;
  return most->first;
}

Status JournalRoom::CheckLease(uint32_t uid, uint64_t bytes) const {
  if (Theirs(uid, 0) + bytes <= MostOfUser() / 8 * 9) return absl::OkStatus();
  return CheckShare(uid, bytes);
}

Status JournalRoom::CheckShare(uint32_t uid, uint64_t bytes) const {
  if (!OverShare(uid, bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("journal: this may cost ", HumanBytes(bytes), " of it; uid ", uid, " has ",
                   HumanBytes(Of(reserved_by_, uid)), " set aside, ", HumanBytes(Of(kept_by_, uid)),
                   " for what is in memory, ", HumanBytes(Of(held_by_, uid)),
                   " for readers' leases and removed steps, of the ", HumanBytes(MostOfUser()),
                   " that one user may have; keep fewer steps and jobs in memory"));
}

Status JournalRoom::CheckCreate(uint32_t uid, uint64_t bytes) const {
  if (bytes == 0) return absl::OkStatus();  // all of it is set aside
  const uint64_t theirs = Of(reserved_by_, uid), most = MostOfUser();
  if (capacity_ != 0 && (bytes > most || theirs > most - bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "journal: this create may cost ", HumanBytes(bytes), " of it; ", HumanBytes(theirs),
        " are set aside for what uid ", uid, " is writing, of the ", HumanBytes(most),
        " that one user may have; commit what is written, create fewer objects, or "
        "give the daemon a "
        "greater journal.bytes"));
  }
  return Check("this create", bytes, kCreatePercent);
}

uint64_t JournalRoom::Lacking(uint64_t bytes) const {
  if (capacity_ == 0) return 0;
  const uint64_t most = capacity_ / 100 * kCreatePercent, wanted = used_ + reserved_ + bytes;
  return wanted - std::min(wanted, most);
}

bool JournalRoom::ASnapshotMayHelp(uint32_t uid, uint64_t bytes) const {
  if (CheckCreate(uid, bytes).ok()) return false;
  JournalRoom empty = *this;
  empty.used_ = 0;
  return empty.CheckCreate(uid, bytes).ok();
}

Status JournalRoom::CheckSmall(absl::string_view what) const {
  return Check(what, kSmallBytes, kSmallPercent);
}

Status JournalRoom::CheckStored(absl::string_view job, uint64_t bytes) const {
  if (bytes <= kSmallBytes) return absl::OkStatus();
  return Check(absl::StrCat("what storage tells of job ", job), bytes, kSmallPercent);
}

}  // namespace cairn::engine
