# The presets of the tests compile several files as one (CMAKE_UNITY_BUILD). That halves the time of a full build, since most of it
# goes into Asio's templates, once for each file. The files of this list are exceptions: they define names in an unnamed namespace
# that a neighbor also defines. The exception resolver.cc refers to code that a static program with a neighbor of it must not
# contain.
set(DDP_ALONE
  apps/ddplaunch/options/hosts_from.cc
  apps/train/checkpoint/model_file.cc
  apps/train/collectives/cpu/peer_connect.cc
  apps/train/training/training_run.cc
  launcher/check/check_deep.cc
  launcher/check/check_run.cc
  launcher/hang/activity_tracker.cc
  launcher/master/master_nodes.cc
  launcher/output/merged_output.cc
  launcher/master/node_link.cc
  launcher/report/report_json.cc
  launcher/report/root_cause.cc
  launcher/agent/worker_group.cc
  remote/hosts/host_range.cc
  remote/hosts/host_spec.cc
  remote/hosts/hostfile.cc
  remote/start/resolver.cc
  remote/hosts/scheduler_hosts.cc
  remote/ssh/ssh_session_steps.cc
  rendezvous/store_tcp/tcp_store_server.cc
  tests/net/store_server_test.cc
  tests/unit/apps/train/checkpoint/model_file_test.cc)

# ddp_keep_alone(FILE…): compiles those of the files separately that are in the list.
function(ddp_keep_alone)
  foreach(file ${ARGN})
    cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE path)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    if(path IN_LIST DDP_ALONE)
      set_source_files_properties(${file} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
endfunction()
