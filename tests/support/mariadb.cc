#include "tests/support/mariadb.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/fd.h"
#include "tests/support/await.h"
#include "tests/support/stopped.h"

namespace cairn::testing {
namespace {

[[noreturn]] void Fail(const std::string& why, const std::string& log) {
  std::cerr << "MariaDB for the tests: " << why << "\n";
  if (const auto text = ReadFile(log); text.ok()) std::cerr << *text;
  std::filesystem::remove_all(std::filesystem::path(log).parent_path());
  ::_exit(1);
}

// The process; its output goes to `log`. A server that starts removes the temporary tables in its TMPDIR,
// those of other servers too, so each has its own: the folder of the log.
pid_t Spawn(const std::vector<std::string>& command, const std::string& log) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const std::string folder = std::filesystem::path(log).parent_path();
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setenv("TMPDIR", folder.c_str(), 1);
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  return pid;
}

}  // namespace

MariaDb::MariaDb() {
  std::string pattern = std::filesystem::temp_directory_path() / "cairn-mariadb-XXXXXX";
  folder_ = ::mkdtemp(pattern.data());
  socket_ = folder_ + "/socket";
  const std::string log = folder_ + "/install.log";
  std::vector<std::string> install = {"/usr/bin/mariadb-install-db",
                                      "--no-defaults",
                                      "--datadir=" + folder_ + "/data",
                                      "--auth-root-authentication-method=normal",
                                      "--skip-test-db",
                                      "--force"};  // also where the host has no name
  if (::geteuid() == 0) install.emplace_back("--user=root");
  int status = 0;
  if (::waitpid(Spawn(install, log), &status, 0) < 0 || status != 0) {
    Fail("mariadb-install-db failed; is mariadb-server-core installed?", log);
  }
  Start();
}

MariaDb::~MariaDb() {
  Kill();
  std::filesystem::remove_all(folder_);
}

void MariaDb::Start(const std::vector<std::string>& more_options) {
  const std::string log = folder_ + "/server.log";
  std::vector<std::string> command = {
      "/usr/sbin/mariadbd", "--no-defaults", "--datadir=" + folder_ + "/data",
      "--socket=" + socket_, "--pid-file=" + folder_ + "/pid", "--skip-networking",
      "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=16M", "--performance-schema=OFF",
      // Of no use to one who kills processes only, and slow:
      "--innodb-flush-log-at-trx-commit=2", "--innodb-doublewrite=0"};
  if (::geteuid() == 0) command.emplace_back("--user=root");
  command.insert(command.end(), more_options.begin(), more_options.end());
  ::unlink(socket_.c_str());
  pid_ = Spawn(command, log);
  const bool answers = Await([&] {
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) Fail("mariadbd ended", log);
    return catalog::MysqlSession::Connect(AsRoot("mysql")).ok();
  });
  if (!answers) Fail("mariadbd does not answer", log);
}

void MariaDb::Kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void MariaDb::Pause(bool paused) const {
  if (!paused) {
    ::kill(pid_, SIGCONT);
  } else if (!Stop(pid_)) {
    Fail("mariadbd does not stand still", folder_ + "/server.log");
  }
}

catalog::MysqlOptions MariaDb::AsRoot(const std::string& database) const {
  catalog::MysqlOptions options;
  options.cluster = "-";
  options.socket = socket_;
  options.database = database;
  options.user = "root";
  return options;
}

catalog::MysqlOptions MariaDb::MakeDatabase() {
  catalog::MysqlOptions options = AsRoot(absl::StrCat("cairn", ++databases_));
  options.cluster = "test";
  options.user = options.database;
  options.password = "a secret";
  options.call_timeout_s = 20;  // the machine may be busy
  Run(absl::StrCat("CREATE DATABASE ", options.database));
  Run(absl::StrCat("CREATE USER ", options.user, "@localhost IDENTIFIED BY 'a secret'"));
  Run(absl::StrCat("GRANT ALL ON ", options.database, ".* TO ", options.user, "@localhost"));
  return options;
}

void MariaDb::Run(const std::string& sql, const std::string& database) {
  auto session = catalog::MysqlSession::Connect(AsRoot(database));
  const Status status = session.ok() ? (*session)->Execute(sql) : session.status();
  if (!status.ok()) Fail(absl::StrCat(sql, ": ", status.ToString()), folder_ + "/server.log");
}

std::string MariaDb::Ask(const std::string& sql, const std::string& database) {
  std::string answer;
  auto session = catalog::MysqlSession::Connect(AsRoot(database));
  const Status status = session.ok() ? (*session)->Query(sql, {},
                                                         [&](const catalog::MysqlColumns& row) {
                                                           if (answer.empty())
                                                             answer = row.Bytes(0);
                                                         })
                                     : session.status();
  if (!status.ok()) Fail(absl::StrCat(sql, ": ", status.ToString()), folder_ + "/server.log");
  return answer;
}

}  // namespace cairn::testing
