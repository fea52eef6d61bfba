#include "server/storage/wary_storage.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"

namespace cairn::storage {
namespace {

const Status& StatusIn(const Status& status) { return status; }
template <typename T>
const Status& StatusIn(const StatusOr<T>& value) {
  return value.status();
}

class WaryStorage final : public Storage {
 public:
  WaryStorage(std::unique_ptr<Storage> inner, Suspects* suspects)
      : inner_(std::move(inner)), suspects_(*suspects) {}

  StatusOr<RootIdentity> Identity() override { return inner_->Identity(); }
  void Expect(const std::string& id) override { inner_->Expect(id); }
  // The names in the root; of no job more than that.
  StatusOr<std::vector<std::string>> Jobs() override { return inner_->Jobs(); }

  Status WriteParts(const CheckpointKey& checkpoint, Owner owner,
                    const std::vector<PartToWrite>& parts) override {
    return Watched<Status>(checkpoint.job, Use::kWriteParts,
                           [&] { return inner_->WriteParts(checkpoint, owner, parts); });
  }
  StatusOr<LineRecord> WriteLineRecord(const LineRecord& record, Owner owner) override {
    return Watched<StatusOr<LineRecord>>(record.job, Use::kWriteLine,
                                         [&] { return inner_->WriteLineRecord(record, owner); });
  }
  StatusOr<Published> Publish(const CheckpointKey& checkpoint, Owner owner) override {
    return Watched<StatusOr<Published>>(checkpoint.job, Use::kPublish,
                                        [&] { return inner_->Publish(checkpoint, owner); });
  }
  Status Reinstate(const CheckpointKey& checkpoint, Owner owner) override {
    return Watched<Status>(checkpoint.job, Use::kReinstate,
                           [&] { return inner_->Reinstate(checkpoint, owner); });
  }
  Status Sweep(const std::string& job, const SweepRules& rules) override {
    return Watched<Status>(job, Use::kSweep, [&] { return inner_->Sweep(job, rules); });
  }
  Status Delete(const CheckpointKey& checkpoint, Owner owner, DeleteKind kind,
                const Chosen& chosen) override {
    return Watched<Status>(checkpoint.job, Use::kDelete,
                           [&] { return inner_->Delete(checkpoint, owner, kind, chosen); });
  }
  StatusOr<StoredJob> Read(const std::string& job) override {
    return Watched<StatusOr<StoredJob>>(job, Use::kScan, [&] { return inner_->Read(job); });
  }
  StatusOr<StoredJob> ReadSummary(const std::string& job) override {
    return Watched<StatusOr<StoredJob>>(job, Use::kScan, [&] { return inner_->ReadSummary(job); });
  }
  StatusOr<StoredCheckpoint> ReadCheckpoint(const CheckpointKey& checkpoint) override {
    return Watched<StatusOr<StoredCheckpoint>>(checkpoint.job, Use::kReadTables,
                                               [&] { return inner_->ReadCheckpoint(checkpoint); });
  }
  StatusOr<LineNumbers> ReadLineNumbers(const std::string& job) override {
    return Watched<StatusOr<LineNumbers>>(job, Use::kListLine,
                                          [&] { return inner_->ReadLineNumbers(job); });
  }
  StatusOr<Owner> JobOwner(const std::string& job) override {
    return Watched<StatusOr<Owner>>(job, Use::kReadOwner, [&] { return inner_->JobOwner(job); });
  }
  StatusOr<std::unique_ptr<Reader>> Open(const StoredCheckpoint& checkpoint, absl::string_view name,
                                         Owner reader) override {
    return Watched<StatusOr<std::unique_ptr<Reader>>>(
        checkpoint.key.job, Use::kOpen, [&] { return inner_->Open(checkpoint, name, reader); });
  }

  Counters counters() const override { return inner_->counters(); }

 private:
  template <typename Result, typename Body>
  Result Watched(const std::string& job, Use use, const Body& body) {
    CAIRN_ASSIGN_OR_RETURN(Suspects::Call call, suspects_.Begin(job, use));
    ReachFailpoint(Failpoint::kStorageUse, job);
    Result result = Caught<Result>(job, use, body);
    // Then nothing of the job was looked at: the root is away.
    call.End(/*well=*/!absl::IsUnavailable(StatusIn(result)));
    return result;
  }

  template <typename Result, typename Body>
  static Result Caught(const std::string& job, Use use, const Body& body) {
    try {
      return body();
    } catch (const std::exception& e) {
      return absl::InternalError(
          absl::StrCat("job ", job, ": ", UseName(use), " in storage: ", e.what()));
    }
  }

  const std::unique_ptr<Storage> inner_;
  Suspects& suspects_;
};

}  // namespace

std::unique_ptr<Storage> MakeWaryStorage(std::unique_ptr<Storage> inner, Suspects* suspects) {
  return std::make_unique<WaryStorage>(std::move(inner), suspects);
}

}  // namespace cairn::storage
