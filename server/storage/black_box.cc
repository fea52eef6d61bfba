#include "server/storage/black_box.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "common/keys.h"

namespace cairn::storage {
namespace {

constexpr uint32_t kMagic = 0x584F4243;  // "CBOX"
constexpr uint32_t kLayoutVersion = 1;
// More deaths than anybody waits for; a greater number in the page is none.
constexpr uint32_t kMostDeaths = 1'000'000;

constexpr const char* kUseNames[] = {
    "scanning",        "listing its line", "reading manifests", "asking for its owner",
    "opening objects", "writing parts",    "writing its line",  "publishing",
    "putting back",    "sweeping",         "deleting",
};
static_assert(std::size(kUseNames) == kUses);

struct Name {
  uint32_t length = 0;  // 0: the entry is empty. Written last
  char bytes[kMaxJobBytes] = {};
};

// Empty when the entry is, or names no job.
std::string JobIn(const Name& name) {
  const uint32_t length =
      std::atomic_ref<uint32_t>(const_cast<uint32_t&>(name.length)).load(std::memory_order_acquire);
  if (length == 0 || length > sizeof(name.bytes)) return {};
  std::string job(name.bytes, length);
  return ValidateJob(job).ok() ? job : std::string();
}

void Erase(Name* name) {
  std::atomic_ref<uint32_t>(name->length).store(0, std::memory_order_release);
  // What is written after this is not what the length was about.
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void Write(Name* name, const std::string& job) {
  std::memcpy(name->bytes, job.data(), std::min(job.size(), sizeof(name->bytes)));
  std::atomic_ref<uint32_t>(name->length)
      .store(static_cast<uint32_t>(job.size()), std::memory_order_release);
}

}  // namespace

absl::string_view UseName(Use use) { return kUseNames[static_cast<size_t>(use)]; }

struct BlackBox::Layout {
  struct Call {
    uint8_t use = 0;
    uint8_t alone = 0;
    uint16_t unused = 0;
    Name job;
  };
  struct Suspected {
    int64_t last_death = 0;
    uint32_t deaths = 0;
    uint32_t uses = 0;
    uint32_t set_asides = 0;
    Name job;
  };

  uint32_t magic = 0;
  uint32_t version = 0;
  uint32_t ended_in_order = 0;
  uint32_t unused = 0;
  Call calls[kCalls];
  Suspected suspects[kSuspects];
};

BlackBox::BlackBox(Mapping page)
    : mapping_(std::move(page)), page_(reinterpret_cast<Layout*>(mapping_.data())) {
  static_assert(sizeof(Layout) <= kBytes);
  if (page_->magic != kMagic || page_->version != kLayoutVersion) {
    std::memset(mapping_.data(), 0, mapping_.length());
    page_->magic = kMagic;
    page_->version = kLayoutVersion;
  }
}

StatusOr<std::unique_ptr<BlackBox>> BlackBox::Open(UniqueFd page) {
  CAIRN_ASSIGN_OR_RETURN(Mapping mapping, Mapping::MapSealed(page.get(), 0, kBytes,
                                                             PROT_READ | PROT_WRITE, MAP_SHARED));
  return std::unique_ptr<BlackBox>(new BlackBox(std::move(mapping)));
}

bool BlackBox::ended_in_order() const { return page_->ended_in_order != 0; }

std::vector<UnderWay> BlackBox::Calls() const {
  std::vector<UnderWay> calls;
  for (const Layout::Call& call : page_->calls) {
    std::string job = JobIn(call.job);
    if (job.empty() || call.use >= kUses) continue;
    calls.push_back({std::move(job), static_cast<Use>(call.use), call.alone == 1});
  }
  return calls;
}

std::vector<Suspect> BlackBox::Suspects(MonotonicNanos now) const {
  std::vector<Suspect> suspects;
  for (const Layout::Suspected& entry : page_->suspects) {
    Suspect suspect{JobIn(entry.job), entry.deaths, entry.uses, entry.set_asides, entry.last_death};
    const bool sense = suspect.deaths > 0 && suspect.deaths <= kMostDeaths && suspect.uses != 0 &&
                       suspect.uses < (uint32_t{1} << kUses) &&
                       suspect.set_asides <= suspect.deaths && suspect.last_death <= now;
    if (!suspect.job.empty() && sense) suspects.push_back(std::move(suspect));
  }
  return suspects;
}

void BlackBox::Begin() {
  for (Layout::Call& call : page_->calls) Erase(&call.job);
  page_->ended_in_order = 0;
  free_.clear();
  for (int slot = kCalls; slot > 0; --slot) free_.push_back(slot - 1);
}

void BlackBox::EndInOrder() { page_->ended_in_order = 1; }

int BlackBox::Enter(const std::string& job, Use use, bool alone) {
  if (free_.empty() || job.size() > kMaxJobBytes) return kNoSlot;
  const int slot = free_.back();
  free_.pop_back();
  Layout::Call& call = page_->calls[slot];
  call.use = static_cast<uint8_t>(use);
  call.alone = alone ? 1 : 0;
  Write(&call.job, job);
  return slot;
}

void BlackBox::NotAlone(int slot) {
  if (slot == kNoSlot) return;
  std::atomic_ref<uint8_t>(page_->calls[slot].alone).store(0, std::memory_order_release);
}

void BlackBox::Leave(int slot) {
  if (slot == kNoSlot) return;
  Erase(&page_->calls[slot].job);
  free_.push_back(slot);
}

void BlackBox::Put(std::vector<Suspect> suspects) {
  std::sort(suspects.begin(), suspects.end(),
            [](const Suspect& a, const Suspect& b) { return a.last_death > b.last_death; });
  suspects.resize(std::min(suspects.size(), kSuspects));
  for (size_t i = 0; i < kSuspects; ++i) {
    Layout::Suspected& entry = page_->suspects[i];
    Erase(&entry.job);
    if (i >= suspects.size()) continue;
    const Suspect& suspect = suspects[i];
    entry.deaths = suspect.deaths;
    entry.uses = suspect.uses;
    entry.set_asides = suspect.set_asides;
    entry.last_death = suspect.last_death;
    Write(&entry.job, suspect.job);
  }
}

}  // namespace cairn::storage
