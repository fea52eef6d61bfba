#include "client/cpp/standing_maps.h"

#include <sys/mman.h>
#include <thrift/TApplicationException.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

#include "client/cpp/process.h"

namespace cairn::client {
namespace {

using apache::thrift::TApplicationException;

constexpr absl::Duration kAskPatience = absl::Seconds(5);
constexpr absl::Duration kTellPatience = absl::Seconds(2);
constexpr absl::Duration kWaitAtDaemon = absl::Seconds(5);
constexpr std::chrono::milliseconds kPause{200};

}  // namespace

class StandingMaps::Mapped : public StandingMapping {
 public:
  Mapped(std::shared_ptr<Link> link, std::shared_ptr<StandingMaps> maps,
         std::shared_ptr<Attachment> attachment_in, SlabId slab_in, uint64_t number_in,
         Mapping mapping)
      : attachment(std::move(attachment_in)),
        slab(slab_in),
        number(number_in),
        link_(std::move(link)),
        maps_(std::move(maps)),
        mapping_(std::move(mapping)) {}
  ~Mapped() override {
    if (!link_->InThisProcess()) {
      // A forked child does not have this mapping, and may have another at that address. Nor may it touch the locks.
      new Mapping(std::move(mapping_));
      return;
    }
    (void)Contain([&] {
      mapping_.Reset();
      maps_->Gone(*this);
      return absl::OkStatus();
    });
  }

  char* data() const override { return mapping_.data(); }
  uint64_t bytes() const override { return mapping_.length(); }

  const std::shared_ptr<Attachment> attachment;
  const SlabId slab;
  const uint64_t number;

 private:
  const std::shared_ptr<Link> link_;
  const std::shared_ptr<StandingMaps> maps_;
  Mapping mapping_;
};

StatusOr<std::unique_ptr<StandingMapping>> StandingMaps::Map(
    const std::shared_ptr<Attachment>& attachment, LeaseId lease,
    std::function<void()> wanted_back) {
  MutexLock asking(&asking_);
  {
    MutexLock lock(&mu_);
    if (ending_) return absl::FailedPreconditionError("this session is being closed");
  }
  const MonotonicNanos deadline = DeadlineAfter(kAskPatience);
  const int64_t call = link_.NextCall();
  wire::StandingReply reply;
  bool known = true;
  const Link::FdCall fd_call(&link_);
  CAIRN_RETURN_IF_ERROR(link_.Call(
      "mapStanding", deadline,
      [&](wire::CairnClient& client, const std::shared_ptr<Attachment>&) {
        try {
          client.mapStanding(reply, call, static_cast<int64_t>(lease));
        } catch (const TApplicationException& error) {
          if (error.getType() != TApplicationException::UNKNOWN_METHOD) throw;
          known = false;
        }
      },
      attachment.get()));
  if (!known) return absl::UnimplementedError("this daemon is older than standing mappings");
  {
    MutexLock lock(&mu_);
    if (!thread_.joinable()) {
      thread_ =
          std::thread([this, link = link_.shared_from_this()]() mutable { Run(std::move(link)); });
    }
  }
  if (attachment->fds == nullptr) return absl::InternalError("standing mapping: no descriptor");
  CAIRN_ASSIGN_OR_RETURN(const ReceivedFd received,
                         attachment->fds->Take(static_cast<LeaseId>(reply.lease), deadline));
  CAIRN_ASSIGN_OR_RETURN(Mapping mapping, Mapping::MapSealed(received.fd.get(), 0, received.bytes,
                                                             PROT_READ | PROT_WRITE, MAP_SHARED));
  if (madvise(mapping.data(), mapping.length(), MADV_DONTFORK) != 0) {
    return ErrnoStatus(errno, "madvise(MADV_DONTFORK)");
  }
  const auto slab = static_cast<SlabId>(reply.slab);
  MutexLock lock(&mu_);
  const uint64_t number = next_++;
  live_[{slab, number}] = {attachment, std::move(wanted_back)};
  untold_.erase(slab);
  return std::make_unique<Mapped>(link_.shared_from_this(), shared_from_this(), attachment, slab,
                                  number, std::move(mapping));
}

void StandingMaps::Gone(const Mapped& mapped) {
  // Whoever maps it anew meanwhile would be told of as having given it up.
  MutexLock asking(&asking_);
  {
    MutexLock lock(&mu_);
    live_.erase({mapped.slab, mapped.number});
    const auto other = live_.lower_bound({mapped.slab, 0});
    if (other != live_.end() && other->first.first == mapped.slab) return;
    if (ending_) {  // LetGo tells all at once
      untold_.insert(mapped.slab);
      return;
    }
  }
  Tell(mapped.attachment, mapped.slab);
}

Status StandingMaps::TellAll(const std::shared_ptr<Attachment>& attachment,
                             MonotonicNanos deadline) {
  std::vector<int64_t> unmapped;
  {
    MutexLock lock(&mu_);
    for (const SlabId slab : untold_) {
      if (unmapped.size() == kMaxSlabsPerCall) break;  // more when those are told
      unmapped.push_back(static_cast<int64_t>(slab));
    }
  }
  if (unmapped.empty()) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(link_.Call(
      "awaitUnmap", deadline,
      [&](wire::CairnClient& client, const std::shared_ptr<Attachment>&) {
        std::vector<int64_t> slabs;
        client.awaitUnmap(slabs, unmapped, {}, /*timeout_ms=*/0);
      },
      attachment.get()));
  {
    MutexLock lock(&mu_);
    for (const int64_t slab : unmapped) untold_.erase(static_cast<SlabId>(slab));
  }
  return unmapped.size() < kMaxSlabsPerCall ? absl::OkStatus() : TellAll(attachment, deadline);
}

void StandingMaps::Tell(const std::shared_ptr<Attachment>& attachment, SlabId slab) {
  const Status told = link_.Call(
      "awaitUnmap", DeadlineAfter(kTellPatience),
      [&](wire::CairnClient& client, const std::shared_ptr<Attachment>&) {
        std::vector<int64_t> slabs;
        client.awaitUnmap(slabs, {static_cast<int64_t>(slab)}, {}, /*timeout_ms=*/0);
      },
      attachment.get());
  if (told.ok()) return;
  MutexLock lock(&mu_);
  untold_.insert(slab);
}

void StandingMaps::DropOthers(const Attachment* current) {
  std::vector<std::function<void()>> old;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, live] : live_) {
      if (live.attachment.get() != current) old.push_back(live.wanted_back);
    }
  }
  for (const auto& wanted_back : old) wanted_back();
}

void StandingMaps::WantBack(const std::shared_ptr<Attachment>& attachment,
                            const std::vector<int64_t>& slabs) {
  for (const int64_t wanted : slabs) {
    const auto slab = static_cast<SlabId>(wanted);
    std::vector<std::function<void()>> owners;
    {
      MutexLock asking(&asking_);
      MutexLock lock(&mu_);
      for (auto at = live_.lower_bound({slab, 0}); at != live_.end() && at->first.first == slab;
           ++at) {
        owners.push_back(at->second.wanted_back);
        at->second.asked = true;
      }
    }
    for (const auto& wanted_back : owners) wanted_back();
    if (!owners.empty()) continue;
    // A call's answer was lost, and its descriptor with it.
    { const Link::FdCall sweeps_strays(&link_); }
    Tell(attachment, slab);
  }
}

void StandingMaps::Run(std::shared_ptr<Link> link) {
  std::shared_ptr<Attachment> attachment;
  for (;;) {
    const std::shared_ptr<Attachment> before = std::exchange(attachment, link->attachment());
    std::vector<int64_t> known, slabs;
    {
      MutexLock lock(&mu_);
      if (ending_) return;
      // Another session has had none of them.
      if (before != nullptr && before != attachment) untold_.clear();
      for (const auto& [id, live] : live_) {
        if (live.asked) known.push_back(static_cast<int64_t>(id.first));
      }
    }
    const Status status = Contain([&]() -> Status {
      DropOthers(attachment.get());
      {
        MutexLock asking(&asking_);
        CAIRN_RETURN_IF_ERROR(TellAll(attachment, DeadlineAfter(kTellPatience)));
      }
      // There is enough to do before more is asked for.
      if (known.size() > kMaxSlabsPerCall) {
        Pause();
        return absl::OkStatus();
      }
      const MonotonicNanos deadline = DeadlineAfter(kWaitAtDaemon);
      CAIRN_RETURN_IF_ERROR(link->Call(
          "awaitUnmap", deadline,
          [&](wire::CairnClient& client, const std::shared_ptr<Attachment>&) {
            client.awaitUnmap(slabs, {}, known, Link::TimeoutMillis(deadline));
          },
          attachment.get()));
      WantBack(attachment, slabs);
      return absl::OkStatus();
    });
    if (!status.ok()) Pause();
  }
}

void StandingMaps::Pause() {
  const auto end = std::chrono::steady_clock::now() + kPause;
  MutexLock lock(&mu_);
  while (!ending_ && changed_.WaitUntil(&mu_, end)) {
  }
}

bool StandingMaps::LetGo() {
  std::vector<std::function<void()>> all;
  {
    MutexLock asking(&asking_);
    MutexLock lock(&mu_);
    ending_ = true;
    changed_.NotifyAll();
    for (const auto& [id, live] : live_) all.push_back(live.wanted_back);
  }
  for (const auto& wanted_back : all) wanted_back();
  MutexLock asking(&asking_);
  const std::shared_ptr<Attachment> attachment = link_.attachment();
  if (attachment != nullptr) (void)TellAll(attachment, DeadlineAfter(kTellPatience));
  MutexLock lock(&mu_);
  return live_.empty() && untold_.empty();
}

void StandingMaps::Join() {
  std::thread ending;
  {
    MutexLock lock(&mu_);
    ending = std::move(thread_);
  }
  if (ending.joinable()) ending.join();
}

}  // namespace cairn::client
