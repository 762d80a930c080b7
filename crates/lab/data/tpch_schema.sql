-- The tables of TPC-H for sqlite, before they are filled. lineitem has rowids: without them sqlite reads all of it by way of an
-- index, and looks up each row.
pragma journal_mode = off;
pragma synchronous = off;
create table region (r_regionkey integer primary key, r_name text, r_comment text);
create table nation (n_nationkey integer primary key, n_name text, n_regionkey integer, n_comment text);
create table part (p_partkey integer primary key, p_name text, p_mfgr text, p_brand text, p_type text, p_size integer,
  p_container text, p_retailprice real, p_comment text);
create table supplier (s_suppkey integer primary key, s_name text, s_address text, s_nationkey integer, s_phone text,
  s_acctbal real, s_comment text);
create table customer (c_custkey integer primary key, c_name text, c_address text, c_nationkey integer, c_phone text,
  c_acctbal real, c_mktsegment text, c_comment text);
create table partsupp (ps_partkey integer, ps_suppkey integer, ps_availqty integer, ps_supplycost real, ps_comment text,
  primary key (ps_partkey, ps_suppkey)) without rowid;
create table orders (o_orderkey integer primary key, o_custkey integer, o_orderstatus text, o_totalprice real,
  o_orderdate text, o_orderpriority text, o_clerk text, o_shippriority integer, o_comment text);
create table lineitem (l_orderkey integer, l_partkey integer, l_suppkey integer, l_linenumber integer, l_quantity real,
  l_extendedprice real, l_discount real, l_tax real, l_returnflag text, l_linestatus text, l_shipdate text,
  l_commitdate text, l_receiptdate text, l_shipinstruct text, l_shipmode text, l_comment text,
  primary key (l_orderkey, l_linenumber));
