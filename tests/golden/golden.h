// Golden files: bytes that some build wrote, kept beside the tests so that every later build is
// held to them. Each format that outlives a process has some: every kind of fact, a journal,
// manifests, every message of the keeper.
//
//   facts/KIND.vN      one fact of each kind; facts_test
//   journal/PART.vN    the journal's header, and the used part of a half: a snapshot and what
//                      followed it, one fact of each kind from its own file; journal_test
//   manifest/NAME.vN   common_test
//   keeper/MESSAGE.vN  keeper_test
//
// N is the version that the bytes themselves carry. To write the files anew after an intended
// change, run the test with CAIRN_WRITE_GOLDEN=1, as in
//   CAIRN_WRITE_GOLDEN=1 build/main/server/facts/facts_test
// (then journal_test too: its half is made of those files), remove the files that no test reads any
// more, and look at `git diff --stat tests/golden` before you commit.
//
// The rule: until the formats are closed, files may change together with the format. From then on
// files are only added. A format that changes gets a new version and new files, and the decoder
// must still read the old ones (OldGolden).
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace cairn {

// The bytes of the golden file tests/golden/NAME, for the test to decode. Fails the test unless
// they equal `encoded`. With CAIRN_WRITE_GOLDEN set, writes `encoded` into the file first.
std::string Golden(const std::string& name, absl::string_view encoded);

// The bytes of a golden file that an earlier build wrote and this one cannot write.
std::string OldGolden(const std::string& name);

// Fails the test when another file than `names` lies in tests/golden/FOLDER: no test would read it.
void ExpectGoldenFilesAre(const std::string& folder, std::vector<std::string> names);

}  // namespace cairn
