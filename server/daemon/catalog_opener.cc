#include "server/daemon/catalog_opener.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "glog/logging.h"
#include "server/catalog/mysql_catalog.h"
#include "server/node/rows.h"

namespace cairn::daemon {
namespace {

constexpr uint64_t kMaxPasswordBytes = 4096;

node::OpenCatalog SqliteOpener(const std::string& path, const catalog::Author& author) {
  return [path, author] {
    std::string moved_aside;
    StatusOr<std::unique_ptr<catalog::Catalog>> opened =
        catalog::OpenSqliteCatalog(path, author, &moved_aside);
    if (!moved_aside.empty()) LOG(WARNING) << "catalog made anew: " << moved_aside;
    return opened;
  };
}

}  // namespace

StatusOr<std::string> ReadPasswordFile(const std::string& path) {
  const auto refused = [&path](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("catalog.mysql.password_file: ", path, ": ", why));
  };
  // A FIFO nobody writes to must not hold the daemon up.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return refused(ErrnoStatus(errno, "opening it").message());
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return refused(ErrnoStatus(errno, "fstat").message());
  if (!S_ISREG(about.st_mode)) return refused("it is no regular file");
  if (about.st_uid != 0 && about.st_uid != ::geteuid()) {
    return refused(absl::StrCat("it belongs to uid ", about.st_uid));
  }
  if ((about.st_mode & 077) != 0) {
    return refused("others may read or write it: chmod 600");
  }
  StatusOr<std::string> text = ReadRegularFile(file.get(), kMaxPasswordBytes);
  if (!text.ok()) return refused(text.status().message());
  std::string password = text->substr(0, text->find('\n'));
  if (password.empty()) return refused("its first line is empty");
  return password;
}

Status CheckPasswordFile(const Options& options) {
  if (!options.UsesMysql() || options.mysql_password_file.empty()) return absl::OkStatus();
  return ReadPasswordFile(options.mysql_password_file).status();
}

node::OpenCatalog CatalogOpener(const Options& options, const fact::RingSeat& seat) {
  if (!options.UsesMysql()) {
    if (options.catalog_path.empty()) return nullptr;
    return SqliteOpener(options.catalog_path, node::AuthorOf(options.node));
  }
  const std::string file = options.mysql_password_file;
  catalog::MysqlOptions as = options.Mysql();
  if (seat.rank >= 0) as.seat = {.rank = seat.rank, .instance = seat.instance};
  return [mysql = std::move(as), file]() mutable -> StatusOr<std::unique_ptr<catalog::Catalog>> {
    if (!file.empty()) {
      CAIRN_ASSIGN_OR_RETURN(mysql.password, ReadPasswordFile(file));
    }
    return catalog::OpenMysqlCatalog(mysql);
  };
}

}  // namespace cairn::daemon
