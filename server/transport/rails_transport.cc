#include "server/transport/rails_transport.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "glog/logging.h"
#include "server/transport/rdma_wire.h"

namespace cairn::transport {
namespace {

constexpr size_t kMostSourcesRemembered = 4096;

// Which bytes of which owner a read is of.
std::string SourceOf(const ReadRequest& request) {
  return absl::StrCat(request.address, " ", request.offset, " ", request.region);
}

}  // namespace

RailsTransport::RailsTransport(std::vector<std::unique_ptr<Transport>> rails,
                               MonotonicNanos left_out)
    : left_out_for_(left_out), under_way_(rails.size()), rails_(std::move(rails)) {
  CHECK(!rails_.empty());
}

RailsTransport::~RailsTransport() {
  // A read that ends on one rail must not begin on another one that is gone.
  MutexLock lock(&mu_);
  closing_ = true;
  while (going_ > 0) left_.Wait(&mu_);
}

std::string RailsTransport::Problem() const {
  std::vector<std::string> problems;
  for (const auto& rail : rails_) {
    problems.push_back(rail->Problem());
    if (problems.back().empty()) return "";
  }
  return absl::StrJoin(problems, "; ");
}

Status RailsTransport::Attach(SlabId slab, SharedFd description, uint64_t bytes) {
  for (size_t i = 0; i < rails_.size(); ++i) {
    const Status attached = rails_[i]->Attach(slab, description, bytes);
    if (attached.ok()) continue;
    for (size_t j = 0; j < i; ++j) rails_[j]->Detach(slab);
    return attached;
  }
  return absl::OkStatus();
}

void RailsTransport::Detach(SlabId slab) {
  for (const auto& rail : rails_) rail->Detach(slab);
}

void RailsTransport::Prepare(SlabId slab) {
  for (const auto& rail : rails_) rail->Prepare(slab);
}

Status RailsTransport::Grant(const GrantToken& token, PeerId reader,
                             std::vector<ExtentRef> extents) {
  for (size_t i = 0; i < rails_.size(); ++i) {
    const Status granted = rails_[i]->Grant(token, reader, extents);
    if (granted.ok()) continue;
    for (size_t j = 0; j < i; ++j) rails_[j]->Revoke(token, ItsReads::kHaveEnded);
    return granted;
  }
  return absl::OkStatus();
}

bool RailsTransport::Revoke(const GrantToken& token, ItsReads reads) {
  bool any = false;
  for (const auto& rail : rails_) any = rail->Revoke(token, reads) || any;
  return any;
}

void RailsTransport::RevokePeer(PeerId reader) {
  for (const auto& rail : rails_) rail->RevokePeer(reader);
}

StatusOr<MonotonicNanos> RailsTransport::LastUsed(const GrantToken& token) const {
  MonotonicNanos last = 0;
  for (const auto& rail : rails_) {
    CAIRN_ASSIGN_OR_RETURN(const MonotonicNanos used, rail->LastUsed(token));
    last = std::max(last, used);
  }
  return last;
}

StatusOr<std::string> RailsTransport::Answer(PeerId reader, absl::string_view question) {
  const auto [rail, words] = RailOf(question);
  return rails_[rail % rails_.size()]->Answer(reader, words);
}

ItsReads RailsTransport::Finish(const std::string& address, const GrantToken& token) {
  ItsReads reads = ItsReads::kHaveEnded;
  for (const auto& rail : rails_) {
    if (rail->Finish(address, token) == ItsReads::kMayBeUnderWay) reads = ItsReads::kMayBeUnderWay;
  }
  return reads;
}

Traffic RailsTransport::traffic() const {
  MutexLock lock(&mu_);
  return {.rdma_rails_left_out = rails_left_out_};
}

// --- reading

void RailsTransport::Read(ReadRequest request, ReadDone done) {
  auto reading = std::make_shared<Reading>();
  reading->request = std::move(request);
  reading->done = std::move(done);
  reading->tried.resize(rails_.size());
  Go(std::move(reading), absl::UnavailableError("no rail"));
}

void RailsTransport::Go(std::shared_ptr<Reading> reading, StatusOr<uint32_t> last) {
  std::optional<size_t> rail;
  {
    MutexLock lock(&mu_);
    if (closing_) {
      last = absl::CancelledError("the transport is closing");
    } else {
      rail = Choose(reading.get());
    }
    if (rail.has_value()) ++going_;
  }
  if (!rail.has_value()) return reading->done(std::move(last));
  ReadRequest request = reading->request;
  rails_[*rail]->Read(std::move(request), [this, reading, rail = *rail](StatusOr<uint32_t> crc) {
    Ended(rail, *reading, crc.status());
    // That there is no room on a rail, or no memory to lock for its device, says nothing of the others.
    const bool otherwise =
        absl::IsUnavailable(crc.status()) || absl::IsResourceExhausted(crc.status());
    const auto tries = std::count(reading->tried.begin(), reading->tried.end(), true);
    if (absl::IsNotFound(crc.status()) && tries > 1) {
      crc = absl::CancelledError("the slab that is read into was detached");  // between two tries
    }
    if (!otherwise) return reading->done(std::move(crc));
    Go(reading, std::move(crc));
  });
  MutexLock lock(&mu_);
  if (--going_ == 0) left_.NotifyAll();
}

std::optional<size_t> RailsTransport::Choose(Reading* reading) {
  const MonotonicNanos now = RealClock()->Now();
  const bool first =
      std::none_of(reading->tried.begin(), reading->tried.end(), [](bool tried) { return tried; });
  std::optional<size_t> best, soonest;
  MonotonicNanos soonest_until = 0;
  for (size_t i = 0; i < rails_.size(); ++i) {
    const size_t rail = (next_ + i) % rails_.size();
    if (reading->tried[rail]) continue;
    const auto out = left_out_until_.find({rail, reading->request.address});
    if (out != left_out_until_.end() && out->second > now) {
      if (!soonest.has_value() || out->second < soonest_until) soonest = rail;
      soonest_until = left_out_until_.at({*soonest, reading->request.address});
      continue;
    }
    if (!best.has_value() || under_way_[rail] < under_way_[*best]) best = rail;
  }
  if (first && reading->request.again) {
    const auto came = came_over_.find(SourceOf(reading->request));
    const bool usable = came != came_over_.end() &&
                        !left_out_until_.contains({came->second, reading->request.address});
    if (usable) best = came->second;
  }
  if (!best.has_value() && first) best = soonest;
  if (!best.has_value()) return std::nullopt;
  next_ = (*best + 1) % rails_.size();
  reading->tried[*best] = true;
  under_way_[*best] += reading->request.length;
  return best;
}

void RailsTransport::Ended(size_t rail, const Reading& reading, const Status& status) {
  const std::string& address = reading.request.address;
  {
    MutexLock lock(&mu_);
    under_way_[rail] -= reading.request.length;
    if (status.ok() && rails_.size() > 1) {
      if (came_over_.size() >= kMostSourcesRemembered) came_over_.clear();
      came_over_[SourceOf(reading.request)] = rail;
    }
    if (!absl::IsUnavailable(status)) return;
    const MonotonicNanos now = RealClock()->Now();
    std::erase_if(left_out_until_, [now](const auto& out) { return out.second <= now; });
    MonotonicNanos& until = left_out_until_[{rail, address}];
    if (until > now) return;  // so said a read that was under way with this one
    until = now + left_out_for_;
    ++rails_left_out_;
  }
  if (rails_.size() == 1) return;  // whoever has but one says so himself
  LOG(WARNING) << "for " << left_out_for_ / kNanosPerSecond << " s without rail " << rail
               << " what is read from " << address << ": " << status;
}

}  // namespace cairn::transport
