#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/catalog/mysql_link.h"
#include "server/catalog/mysql_schema.h"
#include "server/catalog/mysql_session.h"
#include "server/catalog/ring_table.h"

namespace cairn::catalog {
namespace {

constexpr int32_t kMostSize = 1024;
constexpr size_t kMostAddressBytes = 256;

constexpr char kNowMs[] = "CAST(UNIX_TIMESTAMP(NOW(3))*1000 AS SIGNED)";

class MysqlRing final : public RingTable {
 public:
  explicit MysqlRing(const MysqlOptions& options) : cluster_(options.cluster), link_(options) {}

  StatusOr<RingRows> Read() override {
    RingRows rows;
    const Status read = link_.With([&](MysqlSession* session) -> Status {
      rows = {};
      // First: what changes between the two makes a version that is read again.
      int64_t size = 0;
      CAIRN_RETURN_IF_ERROR(session->Query("SELECT epoch, size, version FROM ring WHERE cluster=?",
                                           {cluster_}, [&](const MysqlColumns& row) {
                                             rows.epoch = row.Int(0);
                                             size = row.Int(1);
                                             rows.version = row.Int(2);
                                           }));
      rows.seats.resize(size);
      return session->Query(
          absl::StrCat("SELECT member_rank, incarnation, COALESCE(instance, ''), address, beat, "
                       "IF(beat_unix_ms=0, -1, ",
                       kNowMs, "-beat_unix_ms) FROM members WHERE cluster=? AND member_rank<?"),
          {cluster_, size}, [&](const MysqlColumns& row) {
            rows.seats[row.Int(0)] = {row.Int(1), row.Bytes(2), row.Bytes(3), row.Int(4),
                                      row.Int(5)};
          });
    });
    if (!read.ok()) return read;
    return rows;
  }

  SeatWritten Beat(const SeatName& mine) override {
    return Write([&](MysqlSession* session) -> StatusOr<int64_t> {
      return session->Change(
          absl::StrCat("UPDATE members SET beat=beat+1, beat_unix_ms=", kNowMs, kMyRow),
          MyRow(mine));
    });
  }

  SeatWritten Claim(const SeatName& mine, const std::string& address, int64_t of,
                    int64_t beat) override {
    if (address.size() > kMostAddressBytes) {
      return {SeatWritten::How::kRefused,
              absl::InvalidArgumentError(
                  absl::StrCat("address: ", address.size(), " bytes, at most ", kMostAddressBytes)),
              0};
    }
    return WriteVersion([&](MysqlSession* session) {
      return session->Change(
          absl::StrCat("UPDATE members SET incarnation=?, instance=?, address=?, beat=beat+1, "
                       "beat_unix_ms=",
                       kNowMs,
                       " WHERE cluster=? AND member_rank=? AND incarnation=? AND beat=? AND "
                       "member_rank<(SELECT size FROM ring WHERE ring.cluster=members.cluster)"),
          {mine.incarnation, mine.instance, address, cluster_, int64_t{mine.rank}, of, beat});
    });
  }

  SeatWritten Raise(const SeatName& mine, int64_t incarnation) override {
    return WriteVersion([&](MysqlSession* session) {
      Values values = MyRow(mine);
      values.insert(values.begin(), incarnation);
      return session->Change(absl::StrCat("UPDATE members SET incarnation=?, beat=beat+1", kMyRow),
                             values);
    });
  }

  SeatWritten Release(const SeatName& mine) override {
    return WriteVersion([&](MysqlSession* session) {
      return session->Change(absl::StrCat("UPDATE members SET incarnation=incarnation+1, "
                                          "instance=NULL, address='', beat=beat+1",
                                          kMyRow),
                             MyRow(mine));
    });
  }

  SeatWritten Make(int64_t epoch, int32_t size) override {
    return Write([&](MysqlSession* session) -> StatusOr<int64_t> {
      return InTransaction(session, [&]() -> StatusOr<int64_t> {
        // Assigned from left to right: what says which epoch is the greater comes last.
        CAIRN_RETURN_IF_ERROR(
            session
                ->Change("INSERT INTO ring (cluster, epoch, size, version) VALUES (?,?,?,1) ON "
                         "DUPLICATE KEY UPDATE size=IF(VALUES(epoch)>epoch, VALUES(size), size), "
                         "version=version+(VALUES(epoch)>epoch), epoch=GREATEST(VALUES(epoch), "
                         "epoch)",
                         {cluster_, epoch, int64_t{size}})
                .status());
        CAIRN_RETURN_IF_ERROR(AddRows(session));
        return 1;
      });
    });
  }

  StatusOr<int64_t> Resize(int32_t size) override {
    if (size < 1 || size > kMostSize) {
      return absl::InvalidArgumentError(
          absl::StrCat("size: ", size, " is not 1 to ", kMostSize, " members"));
    }
    int64_t epoch = 0;
    Status status = link_.With([&](MysqlSession* session) -> Status {
      return InTransaction(session,
                           [&]() -> StatusOr<int64_t> { return ResizeRows(session, size, &epoch); })
          .status();
    });
    if (!status.ok()) return status;
    return epoch;
  }

 private:
  static constexpr char kMyRow[] =
      " WHERE cluster=? AND member_rank=? AND incarnation=? AND "
      "instance=?";
  Values MyRow(const SeatName& mine) const {
    return {cluster_, int64_t{mine.rank}, mine.incarnation, mine.instance};
  }

  // `write` returns how many rows it changed. Twice is once for each of them: the second time the row is another one.
  SeatWritten Write(const std::function<StatusOr<int64_t>(MysqlSession*)>& write) {
    SeatWritten written;
    bool sent = false;
    written.why = link_.With([&](MysqlSession* session) -> Status {
      sent = true;
      CAIRN_ASSIGN_OR_RETURN(const int64_t rows, write(session));
      written.how = rows > 0 ? SeatWritten::How::kDone : SeatWritten::How::kNot;
      return session->Query("SELECT version FROM ring WHERE cluster=?", {cluster_},
                            [&](const MysqlColumns& row) { written.version = row.Int(0); });
    });
    if (written.why.ok()) return written;
    // The server answers each other error after it has undone what the statement did.
    const bool unknown = sent && absl::IsUnavailable(written.why);
    written.how = unknown ? SeatWritten::How::kUnknown : SeatWritten::How::kRefused;
    return written;
  }

  // With a new version of the ring, both or none.
  SeatWritten WriteVersion(const std::function<StatusOr<int64_t>(MysqlSession*)>& write) {
    return Write([&](MysqlSession* session) {
      return InTransaction(session, [&]() -> StatusOr<int64_t> {
        // First, so that two who write at once wait for each other rather than in a circle.
        CAIRN_RETURN_IF_ERROR(session->Query("SELECT version FROM ring WHERE cluster=? FOR UPDATE",
                                             {cluster_}, [](const MysqlColumns&) {}));
        CAIRN_ASSIGN_OR_RETURN(const int64_t rows, write(session));
        if (rows == 0) return rows;
        CAIRN_RETURN_IF_ERROR(
            session->Change("UPDATE ring SET version=version+1 WHERE cluster=?", {cluster_})
                .status());
        return rows;
      });
    });
  }

  static StatusOr<int64_t> InTransaction(MysqlSession* session,
                                         const std::function<StatusOr<int64_t>()>& body) {
    CAIRN_RETURN_IF_ERROR(session->Execute("START TRANSACTION"));
    StatusOr<int64_t> rows = body();
    if (rows.ok()) {
      CAIRN_RETURN_IF_ERROR(session->Execute("COMMIT"));
      return rows;
    }
    const bool given_up = session->given_up();
    if (session->broken() || !session->Execute("ROLLBACK").ok()) return rows;
    // The server gave it up for another one's sake: then it was not done.
    if (given_up) return absl::AbortedError(rows.status().message());
    return rows;
  }

  // The rows of ranks that have none yet, up to the ring's size.
  Status AddRows(MysqlSession* session) {
    int64_t size = 0;
    CAIRN_RETURN_IF_ERROR(session->Query("SELECT size FROM ring WHERE cluster=?", {cluster_},
                                         [&](const MysqlColumns& row) { size = row.Int(0); }));
    for (int64_t rank = 0; rank < size; ++rank) {
      CAIRN_RETURN_IF_ERROR(
          session
              ->Change("INSERT IGNORE INTO members (cluster, member_rank, incarnation, instance, "
                       "address, beat, beat_unix_ms) VALUES (?,?,0,NULL,'',0,0)",
                       {cluster_, rank})
              .status());
    }
    return absl::OkStatus();
  }

  StatusOr<int64_t> ResizeRows(MysqlSession* session, int32_t size, int64_t* epoch) {
    *epoch = 0;
    int64_t before = 0;
    CAIRN_RETURN_IF_ERROR(session->Query("SELECT epoch, size FROM ring WHERE cluster=? FOR UPDATE",
                                         {cluster_}, [&](const MysqlColumns& row) {
                                           *epoch = row.Int(0);
                                           before = row.Int(1);
                                         }));
    if (before == size) return 0;
    std::vector<int64_t> taken;
    CAIRN_RETURN_IF_ERROR(session->Query(
        "SELECT member_rank FROM members WHERE cluster=? AND member_rank>=? AND "
        "instance IS NOT NULL ORDER BY member_rank LIMIT 16",
        {cluster_, int64_t{size}}, [&](const MysqlColumns& row) { taken.push_back(row.Int(0)); }));
    if (!taken.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("size: ", size, ": rank ", absl::StrJoin(taken, ", "),
                       " would go, and somebody has it: `cairn drain` on that node gives it back"));
    }
    ++*epoch;
    CAIRN_RETURN_IF_ERROR(
        session
            ->Change(
                "INSERT INTO ring (cluster, epoch, size, version) VALUES (?,?,?,1) ON DUPLICATE "
                "KEY UPDATE epoch=VALUES(epoch), size=VALUES(size), version=version+1",
                {cluster_, *epoch, int64_t{size}})
            .status());
    CAIRN_RETURN_IF_ERROR(AddRows(session));
    return 1;
  }

  const std::string cluster_;
  MysqlLink link_;
};

}  // namespace

StatusOr<std::unique_ptr<RingTable>> OpenMysqlRing(const MysqlOptions& options) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  CAIRN_RETURN_IF_ERROR(EnsureMysqlSchema(options));
  return std::unique_ptr<RingTable>(std::make_unique<MysqlRing>(options));
}

}  // namespace cairn::catalog
